// What one rank of a training run did, step by step, as its model saw it.
#ifndef LOCKSTEP_CONFORMANCE_TRACE_H_
#define LOCKSTEP_CONFORMANCE_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The samples of one step: of one rank, or of all.
struct Samples {
  std::vector<float> images;  // [n, c, h, w].
  std::vector<int32_t> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// One rank's run of S steps. Flat arrays are laid out as Parameters lays them
// out.
struct RankTrace {
  std::vector<std::vector<float>> parameters;  // S + 1: before each step, last.
  std::vector<std::vector<float>> gradients;   // S: as the update used them.
  std::vector<Samples> samples;                // S: this rank's part.
};

// Bytes that ParseTrace turns back into the same trace, bit for bit, in a
// process of the same machine.
std::string SerializeTrace(const RankTrace& trace);

// Errors: kDataLoss if the bytes end too early or go on too long.
absl::StatusOr<RankTrace> ParseTrace(absl::string_view bytes);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_TRACE_H_
