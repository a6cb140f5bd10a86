// A handle of a collective call that was started.
#ifndef LOCKSTEP_COLLECTIVES_PENDING_COLLECTIVE_H_
#define LOCKSTEP_COLLECTIVES_PENDING_COLLECTIVE_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace lockstep {

// A handle of a call that was started. Copies stand for the same call. It must
// not be used after the communicator that started the call has ended.
class PendingCollective {
 public:
  // The progress of a call, which a backend implements.
  class Progress {
   public:
    virtual ~Progress() = default;
    // Blocks until the call has ended. Returns the same status every time.
    virtual absl::Status Wait() = 0;
    virtual bool done() = 0;
  };

  explicit PendingCollective(std::shared_ptr<Progress> progress)
      : progress_(std::move(progress)) {}
  // A call that has ended with this status.
  explicit PendingCollective(absl::Status status)
      : status_(std::move(status)) {}

  // Blocks until the call is done. Returns its status. The buffers of the call
  // then belong to the caller again.
  absl::Status Wait() const {
    return progress_ == nullptr ? status_ : progress_->Wait();
  }
  bool done() const { return progress_ == nullptr || progress_->done(); }

 private:
  std::shared_ptr<Progress> progress_;
  absl::Status status_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_PENDING_COLLECTIVE_H_
