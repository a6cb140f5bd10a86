// The order in which a rank begins the calls of several groups on one GPU.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_ISSUE_ORDER_H_
#define LOCKSTEP_COLLECTIVES_NCCL_ISSUE_ORDER_H_

#include <atomic>
#include <cstdint>

#include "collectives/collective.h"

namespace lockstep {

// Numbers the calls of all groups of the same ranks: a group, and its splits
// that have all of its ranks. The kernels of a call wait on the GPU for those
// of the other ranks, and kernels of two groups need not fit on a GPU at once.
// Every rank must therefore begin the calls of these groups in the same order.
// Ranks that compare the numbers of their calls see whether they do.
//
// Any thread may call the methods.
class IssueOrder {
 public:
  static constexpr int64_t kUnknown = -1;

  // Returns the number of the next call, from 0. kUnknown if the order does not
  // count: no kernel of the call waits for all ranks, or a group has failed, so
  // that ranks have not made the same calls.
  int64_t NumberOf(Operation operation) {
    switch (operation) {
      case Operation::kSend:
      case Operation::kReceive:
      case Operation::kBarrier:
      case Operation::kAllocate:
      case Operation::kSplit:
        return kUnknown;
      default:
        return has_failed_ ? kUnknown : begun_++;
    }
  }

  // Returns the place of the next call that is captured in a graph, from 0.
  int64_t NextCaptured() { return captured_++; }
  // Returns the number of calls that were captured.
  int64_t captured() const { return captured_; }

  // Records that one of the groups has failed.
  void GroupHasFailed() { has_failed_ = true; }

 private:
  std::atomic<int64_t> begun_ = 0;
  std::atomic<int64_t> captured_ = 0;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_ISSUE_ORDER_H_
