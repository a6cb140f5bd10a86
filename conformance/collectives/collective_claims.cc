// One recorder a type.
#include "conformance/collectives/collective_claims.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep {
namespace {

int64_t CasesOf(DataType type,
                std::span<const absl::StatusOr<std::string>> asked) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& types : asked) {
    if (!types.ok()) return 0;
    fewest = std::min<int64_t>(fewest, std::count(types->begin(), types->end(),
                                                  static_cast<char>(type)));
  }
  return asked.empty() ? 0 : fewest;
}

}  // namespace

CollectiveClaims::CollectiveClaims(const std::string& backend, int world_size) {
  for (const DataType type : kAllDataTypes) {
    recorders_[type] = std::make_unique<ClaimRecorder>(
        ClaimSubject{"collectives", backend, world_size, Name(type)});
  }
}

void CollectiveClaims::Add(std::span<const absl::StatusOr<std::string>> asked) {
  for (const auto& [type, recorder] : recorders_) {
    const int64_t cases = CasesOf(type, asked);
    if (cases > 0) recorder->AddExact(cases);
  }
}

}  // namespace lockstep
