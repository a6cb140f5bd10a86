// PyTorch's batch norm, in a process of its own.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/line_worker.h"
#include "benchmarks/syncbn_turn.h"

namespace lockstep {

// A Python that has PyTorch, kept to time its BatchNorm2d on one thread.
class SyncBnPeer {
 public:
  // Tries `pythons` in turn. Errors: kUnavailable, which says for each why it
  // will not do.
  static absl::StatusOr<SyncBnPeer> Start(
      const std::vector<std::string>& pythons, absl::Duration timeout);

  // turn.missing is set where this PyTorch lacks the type or the memory, or
  // does it wrong. Errors: kUnavailable and kDeadlineExceeded if the process
  // ended or said nothing; kInternal if it said something else.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request);

  // "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the CPU:
  // ValueError: ...", or "... on the CPU: runs".
  const std::string& name() const { return name_; }

 private:
  SyncBnPeer(LineWorker worker, std::string name, absl::Duration timeout)
      : worker_(std::move(worker)), name_(std::move(name)), timeout_(timeout) {}

  static absl::StatusOr<SyncBnPeer> StartWith(const std::string& python,
                                              absl::Duration timeout);

  LineWorker worker_;
  std::string name_;
  absl::Duration timeout_;
};

// What syncbn_peer_torch.py is told, and its answer to that. Errors: kInternal.
std::string PeerLine(const SyncBnRequest& request);
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_PEER_H_
