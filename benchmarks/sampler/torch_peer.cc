// What is said to torch_peer.py, and what it answers.
#include "benchmarks/sampler/torch_peer.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/torch_peer_py.h"
#include "sampler/permutation.h"

namespace lockstep::benchmarks {
absl::StatusOr<SamplerPeer> SamplerPeer::Start(
    const SamplerSettings& settings) {
  const absl::Duration timeout = absl::Seconds(settings.timeout);
  LOCKSTEP_ASSIGN_OR_RETURN(
      TorchProcess process,
      TorchProcess::Start(settings.pythons, SamplerPeerTorch(),
                          absl::Now() + timeout));
  return SamplerPeer(std::move(process), timeout);
}

SamplerPeer::SamplerPeer(TorchProcess process, absl::Duration timeout)
    : process_(std::move(process)),
      name_(absl::StrCat("PyTorch ", process_.version(), " (",
                         process_.python(), ")")),
      timeout_(timeout) {}

absl::StatusOr<DrawResult> SamplerPeer::Draw(int64_t size) {
  if (size >= kWideDrawSize && !DrawsWide(process_.version())) {
    return absl::FailedPreconditionError(
        absl::StrCat("before 2.6 it draws another order from ", kWideDrawSize,
                     " samples on"));
  }
  const int64_t needed = PyTorchMemory(size), free = AvailableMemory();
  if (needed > free) {
    return absl::FailedPreconditionError(
        absl::StrCat("it needs about ", needed >> 20,
                     " MiB for this size, and ", free >> 20, " MiB are free"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string answer,
      process_.Ask(absl::StrCat(size, " ", kDrawWorldSize, " ", kDrawRank, " ",
                                kDrawSeed, " ", kDrawEpoch),
                   absl::Now() + timeout_));
  return ParseDrawAnswer(answer);
}

bool DrawsWide(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int major = 0, minor = 0;
  return parts.size() >= 2 && absl::SimpleAtoi(parts[0], &major) &&
         absl::SimpleAtoi(parts[1], &minor) &&
         (major > 2 || (major == 2 && minor >= 6));
}

absl::StatusOr<DrawResult> ParseDrawAnswer(const std::string& answer) {
  const std::vector<std::string> words = absl::StrSplit(answer, ' ');
  DrawResult result;
  if (words.size() == 4 && words[0] == "drew" &&
      absl::SimpleAtod(words[1], &result.seconds) &&
      std::isfinite(result.seconds) && result.seconds > 0 &&
      absl::SimpleAtoi(words[2], &result.count) && result.count > 0 &&
      absl::SimpleAtoi(words[3], &result.checksum)) {
    return result;
  }
  return NotUnderstood(answer);
}

}  // namespace lockstep::benchmarks
