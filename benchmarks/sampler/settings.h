// The settings of the command `sampler`: its flags as checked values, what is
// drawn, and the memory of a draw.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_SETTINGS_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// The sampler that draws an epoch. Each has one line of the table for each data
// set size.
enum class DrawSubject {
  kTorch,    // DistributedSampler.
  kExact,    // The same without padding: Tail::kKeep.
  kPaddle,   // PaddleSampler.
  kPyTorch,  // The peer: PyTorch's own DistributedSampler.
  kTable,    // Not a sampler: random updates of a table (TimeRandomUpdates).
};

const char* Name(DrawSubject subject);

// The epoch and rank of every draw. Indices are shuffled.
inline constexpr int kDrawWorldSize = 8;
inline constexpr int kDrawRank = 3;
inline constexpr int64_t kDrawSeed = 0;
inline constexpr int64_t kDrawEpoch = 1;
inline constexpr int64_t kDrawBatchSize = 32;  // Paddle's order depends on it.

// The size at which the order in O(1) memory is measured.
inline constexpr int64_t kKeyedSize = 1'000'000'000'000;

struct SamplerSettings {
  std::vector<int64_t> sizes = {};  // Samples in the data set, ascending.
  bool torch = true;  // Whether PyTorch is measured, if it is installed.
  std::vector<std::string> pythons =
      {};                // The Pythons to try for PyTorch, in this order.
  int rounds = 0;        // Draws of each subject; 0: as `seconds` allows.
  double seconds = 35;   // For all draws together, if rounds is 0.
  double timeout = 120;  // The seconds that PyTorch has for a draw.
};

// Reads a comma-separated list of sizes: ascending, each once. Errors:
// kInvalidArgument, beginning with the flag.
absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view text);

// Returns whether the list of peers, which may be empty, has the only peer,
// torch. Errors: kInvalidArgument, beginning with the flag.
absl::StatusOr<bool> ParseSamplerPeers(absl::string_view text);

// Checks the settings. Errors: kInvalidArgument, beginning with the flag that
// is wrong.
absl::Status Validate(const SamplerSettings& settings);

// Return an upper limit of the bytes of memory that a draw takes, with our
// samplers or with PyTorch's.
int64_t DrawMemory(int64_t size);
int64_t PyTorchMemory(int64_t size);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_SETTINGS_H_
