// What is said to syncbn_peer_torch.py, and what it answers.
#include "benchmarks/syncbn_peer.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/syncbn_peer_torch.h"
#include "benchmarks/torch_process.h"
#include "collectives/data_type.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

CallTimes TimesOf(double seconds) {
  CallTimes times;
  times.end = seconds;
  return times;
}

}  // namespace

absl::StatusOr<SyncBnPeer> SyncBnPeer::Start(
    const std::vector<std::string>& pythons, absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      TorchProcess process,
      TorchProcess::Start(pythons, SyncBnPeerTorch(), deadline));
  return SyncBnPeer(std::move(process));
}

SyncBnPeer::SyncBnPeer(TorchProcess process) : process_(std::move(process)) {
  const std::pair<std::string, std::string> ready =
      absl::StrSplit(process_.version(), absl::MaxSplits(' ', 1));
  name_ = absl::StrCat("PyTorch ", ready.first, " (", process_.python(),
                       "); its SyncBatchNorm on the CPU: ", ready.second);
}

absl::StatusOr<RankTurn> SyncBnPeer::Time(const SyncBnRequest& request,
                                          absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                            process_.Ask(PeerLine(request), deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn, ParsePeerAnswer(request, answer));
  turn.note = name_;
  return turn;
}

std::string PeerLine(const SyncBnRequest& request) {
  const LayerSpec& layer = request.layer;
  return absl::StrCat(layer.n, " ", layer.c, " ", layer.h, " ", layer.w, " ",
                      Name(layer.layout), " ", Name(layer.type), " ",
                      layer.seed, " ", request.warmup, " ", request.iterations);
}

absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer) {
  RankTurn turn;
  const std::pair<std::string, std::string> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (words.first == "cannot") {
    turn.missing = words.second;
    return turn;
  }
  const std::vector<std::string> numbers = absl::StrSplit(words.second, ' ');
  if (words.first != "timed" ||
      numbers.size() != 2 * static_cast<size_t>(request.iterations)) {
    return NotUnderstood(answer);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    double seconds = 0;
    if (!absl::SimpleAtod(numbers[i], &seconds) || !std::isfinite(seconds) ||
        seconds <= 0) {
      return NotUnderstood(answer);
    }
    (i % 2 == 0 ? turn.forward : turn.backward).push_back(TimesOf(seconds));
  }
  return turn;
}

}  // namespace lockstep
