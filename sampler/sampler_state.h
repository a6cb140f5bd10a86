// Where in an epoch the ranks are, to be kept with a checkpoint.
#ifndef LOCKSTEP_SAMPLER_SAMPLER_STATE_H_
#define LOCKSTEP_SAMPLER_SAMPLER_STATE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// A place in an epoch, the same on every rank. An epoch begins with the ranks
// of one world size and may go on with others: what they have visited is first
// `before` samples of its order, by those who left, and then `visited` each by
// those who are there now.
struct SamplerState {
  std::string order;  // Which order it is a place in, as the sampler words it.
  int64_t epoch = 0;
  int64_t first_world_size = 1;  // The ranks that the epoch began with, where
                                 // its order depends on them (Paddle's).
  int64_t before = 0;
  int64_t world_size = 1;  // The ranks there are now, who deal the samples in
  int64_t batch_size = 1;  // blocks of this size.
  int64_t visited = 0;

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// One line of JSON, whose keys are the names above.
std::string ToJson(const SamplerState& state);

// Errors: kInvalidArgument, naming the key, if the text is not what ToJson
// writes. Whether the numbers make sense is Restore's to check.
absl::StatusOr<SamplerState> SamplerStateFromJson(absl::string_view json);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_STATE_H_
