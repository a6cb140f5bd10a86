// PyTorch in a process of its own.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_TORCH_PEER_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_TORCH_PEER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/draw.h"
#include "benchmarks/sampler/plan.h"

namespace lockstep::benchmarks {

// A Python that has PyTorch, kept to draw epochs with its DistributedSampler.
class SamplerPeer {
 public:
  // Tries settings.pythons in turn, all within settings.timeout. Error:
  // kUnavailable, which says for each why it will not do.
  static absl::StatusOr<SamplerPeer> Start(const SamplerSettings& settings);

  // The same epoch as DrawEpoch does, on one thread; what is timed is the
  // iteration over the sampler, to an array of int64. Errors: kUnavailable and
  // kDeadlineExceeded if the process ended or said nothing; kInternal if it
  // said something else; kFailedPrecondition if this PyTorch draws another
  // order at that size, or if there is not the memory for it.
  absl::StatusOr<DrawResult> Draw(int64_t size);

  // "PyTorch 1.13.0 (/usr/bin/python3)".
  const std::string& name() const { return name_; }

 private:
  SamplerPeer(TorchProcess process, absl::Duration timeout);

  TorchProcess process_;
  std::string name_;
  absl::Duration timeout_;
};

// Whether a PyTorch of that version, such as "2.6.0+cu124", draws what ours
// does at every size (see kWideDrawSize).
bool DrawsWide(const std::string& version);

// The answer of torch_peer.py to a draw. Errors: kInternal.
absl::StatusOr<DrawResult> ParseDrawAnswer(const std::string& answer);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_TORCH_PEER_H_
