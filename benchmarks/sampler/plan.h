// What the command `sampler` is asked to measure.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_PLAN_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// Whose epoch is drawn: one line of the table for each data set size.
enum class DrawSubject {
  kTorch,    // DistributedSampler.
  kExact,    // The same without padding: Tail::kKeep.
  kPaddle,   // PaddleSampler.
  kPyTorch,  // The peer: PyTorch's own DistributedSampler.
  kTable,    // Not a draw: what a table takes that is accessed at random.
};

// "torch", "exact", "paddle", "PyTorch", "table".
const char* Name(DrawSubject subject);

// Every draw is of this epoch's indices for this rank, shuffled.
inline constexpr int kDrawWorldSize = 8;
inline constexpr int kDrawRank = 3;
inline constexpr int64_t kDrawSeed = 0;
inline constexpr int64_t kDrawEpoch = 1;
inline constexpr int64_t kDrawBatchSize = 32;  // Which Paddle's order needs.

// The size at which the order in O(1) memory is measured.
inline constexpr int64_t kKeyedSize = 1'000'000'000'000;

struct SamplerSettings {
  std::vector<int64_t> sizes;        // Samples in the data set, ascending.
  bool torch = true;                 // Next to PyTorch, if it is installed.
  std::vector<std::string> pythons;  // Where to look for it, in this order.
  int rounds = 0;                    // Draws of each; 0: as `seconds` allows.
  double seconds = 35;               // For everything, if rounds is 0.
  double timeout = 120;              // Seconds that PyTorch has for a draw.
};

// Reads a comma-separated list of sizes: ascending, each once. Errors:
// kInvalidArgument, beginning with the flag.
absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view text);

// Whether the list of peers, which may be empty, has the one that there is.
// Errors: kInvalidArgument, beginning with the flag.
absl::StatusOr<bool> ParseSamplerPeers(absl::string_view text);

// Errors: kInvalidArgument, beginning with the flag that is wrong.
absl::Status Validate(const SamplerSettings& settings);

// The most memory that a draw takes, ours or PyTorch's, in bytes.
int64_t DrawMemory(int64_t size);
int64_t PyTorchMemory(int64_t size);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_PLAN_H_
