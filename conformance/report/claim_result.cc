// ClaimResult as JSON.
#include "conformance/report/claim_result.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

constexpr int64_t kMostRanks = 1 << 20;

bool IsText(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_string();
}

bool IsIn(const nlohmann::json& json, const char* key, int64_t low,
          int64_t high) {
  if (!json.contains(key) || !json[key].is_number_integer()) return false;
  const auto value = json[key].get<int64_t>();
  return low <= value && value <= high;
}

// JSON has no infinity: null is one.
bool IsError(const nlohmann::json& json, const char* key) {
  if (!json.contains(key)) return false;
  return json[key].is_null() ||
         (json[key].is_number() && json[key].get<double>() >= 0);
}

}  // namespace

std::string FormatClaimResult(const ClaimResult& result) {
  nlohmann::ordered_json json = {{"claim", result.claim},
                                 {"backend", result.backend},
                                 {"world_size", result.world_size},
                                 {"type", result.type},
                                 {"cases", result.cases},
                                 {"error_over_allowed", nullptr},
                                 {"exact", result.exact}};
  if (std::isfinite(result.error_over_allowed)) {
    json["error_over_allowed"] = result.error_over_allowed;
  }
  return json.dump(-1, ' ', true,
                   nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<ClaimResult> ParseClaimResult(absl::string_view text) {
  const auto json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  const char* wrong = nullptr;
  if (!json.is_object()) {
    return absl::InvalidArgumentError("a claim that is no JSON object");
  }
  for (const char* key : {"claim", "backend", "type"}) {
    if (!IsText(json, key)) wrong = key;
  }
  if (!IsIn(json, "world_size", 1, kMostRanks)) wrong = "world_size";
  if (!IsIn(json, "cases", 0, std::numeric_limits<int64_t>::max())) {
    wrong = "cases";
  }
  if (!IsError(json, "error_over_allowed")) wrong = "error_over_allowed";
  if (!json.contains("exact") || !json["exact"].is_boolean()) wrong = "exact";
  if (wrong != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a claim whose \"", wrong, "\" is missing or wrong"));
  }
  ClaimResult result;
  result.claim = json["claim"].get<std::string>();
  result.backend = json["backend"].get<std::string>();
  result.world_size = json["world_size"].get<int>();
  result.type = json["type"].get<std::string>();
  result.cases = json["cases"].get<int64_t>();
  result.error_over_allowed = json["error_over_allowed"].is_null()
                                  ? std::numeric_limits<double>::infinity()
                                  : json["error_over_allowed"].get<double>();
  result.exact = json["exact"].get<bool>();
  return result;
}

}  // namespace lockstep
