// Arithmetic on one environment variable.
#include "collectives/launch/gpu_assignment.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

bool IsName(absl::string_view entry) {
  for (const absl::string_view prefix : {"GPU-", "MIG-"}) {
    if (absl::StartsWith(entry, prefix)) return entry.size() > prefix.size();
  }
  return false;
}

absl::Status Bad(absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("CUDA_VISIBLE_DEVICES=\"", value, "\" ", why));
}

absl::StatusOr<std::vector<std::string>> ParseVisible(
    const std::string& value) {
  std::vector<std::string> gpus;
  std::set<std::string> seen;
  if (absl::StripAsciiWhitespace(value).empty()) return gpus;
  for (absl::string_view item : absl::StrSplit(value, ',')) {
    item = absl::StripAsciiWhitespace(item);
    int number = 0;
    const bool is_number = absl::SimpleAtoi(item, &number);
    if (is_number && number == -1) break;  // CUDA sees nothing from here on.
    if (!IsName(item) && (!is_number || number < 0)) {
      return Bad(value, absl::StrCat("has an entry \"", item,
                                     "\" that is neither a number nor GPU-... "
                                     "nor MIG-..."));
    }
    gpus.push_back(is_number ? absl::StrCat(number) : std::string(item));
    if (!seen.insert(gpus.back()).second) {
      return Bad(value, absl::StrCat("has ", gpus.back(), " twice"));
    }
  }
  return gpus;
}

std::string Count(int number, absl::string_view noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AssignGpus(
    const GpuRequest& request, const std::optional<std::string>& visible,
    int gpus_on_host) {
  std::vector<std::string> gpus;
  if (visible.has_value()) {
    LOCKSTEP_ASSIGN_OR_RETURN(gpus, ParseVisible(*visible));
  } else {
    for (int i = 0; i < gpus_on_host; ++i) gpus.push_back(absl::StrCat(i));
  }
  const int64_t count = static_cast<int64_t>(gpus.size());
  const int64_t n = request.gpus_per_rank;
  const int64_t needed = request.share ? n : n * request.ranks;
  if (needed > count) {
    const std::string source =
        visible ? absl::StrCat("CUDA_VISIBLE_DEVICES=\"", *visible, "\" has ")
                : std::string("this host has ");
    return absl::InvalidArgumentError(absl::StrCat(
        Count(request.ranks, "rank"), " with ",
        Count(request.gpus_per_rank, "GPU"), " each: ", source, count,
        request.share || count == 0 ? "" : " (see --share_gpus)"));
  }
  std::vector<std::string> values;
  for (int64_t rank = 0; rank < request.ranks; ++rank) {
    std::vector<std::string> mine;
    for (int64_t i = 0; i < n; ++i)
      mine.push_back(gpus[(rank * n + i) % count]);
    values.push_back(absl::StrJoin(mine, ","));
  }
  return values;
}

int GpusOnHost() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    int ignored = 0;
    if (absl::ConsumePrefix(&number, "nvidia") &&
        absl::SimpleAtoi(number, &ignored)) {
      ++count;
    }
  }
  return count;
}

}  // namespace lockstep
