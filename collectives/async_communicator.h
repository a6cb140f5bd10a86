// Collectives that run while the caller computes.
#ifndef LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_

#include <memory>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"

namespace lockstep {

// Runs the calls of one rank, in the order in which they were started, on a
// thread of its own. Borrows the communicator, which nobody else may use while
// a call is pending. Not thread safe: one thread starts and waits.
class AsyncCommunicator {
 public:
  explicit AsyncCommunicator(Communicator& communicator);
  ~AsyncCommunicator();  // Finishes what was started.
  AsyncCommunicator(const AsyncCommunicator&) = delete;
  AsyncCommunicator& operator=(const AsyncCommunicator&) = delete;

  // Starts Communicator::AllReduceSum on `data`, which is borrowed until Wait.
  void StartAllReduceSum(Buffer data);

  // Blocks until everything started so far is done. Returns the first error
  // since the last Wait. The communicator may then be used directly.
  absl::Status Wait();

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ASYNC_COMMUNICATOR_H_
