// PyTorch's batch norm, in a process of its own.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/syncbn_turn.h"
#include "benchmarks/torch_process.h"

namespace lockstep {

// A Python that has PyTorch, kept to time its BatchNorm2d on one thread.
class SyncBnPeer {
 public:
  // Tries `pythons` in turn, all before `deadline`. Error: kUnavailable, which
  // says for each why it will not do.
  static absl::StatusOr<SyncBnPeer> Start(
      const std::vector<std::string>& pythons, absl::Time deadline);

  // turn.missing is set where this PyTorch lacks the type or the memory, or
  // does it wrong. Errors: kUnavailable and kDeadlineExceeded if the process
  // ended or said nothing by `deadline`; kInternal if it said something else.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request,
                                absl::Time deadline);

  // "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the CPU:
  // ValueError: ...", or "... on the CPU: runs".
  const std::string& name() const { return name_; }

 private:
  explicit SyncBnPeer(TorchProcess process);

  TorchProcess process_;
  std::string name_;
};

// What syncbn_peer_torch.py is told, and its answer to that. Errors: kInternal.
std::string PeerLine(const SyncBnRequest& request);
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_
