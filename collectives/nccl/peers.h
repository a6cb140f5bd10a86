// What the ranks of an NCCL group tell each other beside NCCL: what they call,
// and how it goes.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_PEERS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_PEERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// One rank's side. Every call is a collective of the control group: first
// Agree, then Share until it returns true or an error. Not thread safe.
class Peers {
 public:
  // control: of host memory, with the same ranks as the NCCL group.
  explicit Peers(std::unique_ptr<Communicator> control);

  int rank() const { return control_->rank(); }
  int world_size() const { return control_->world_size(); }
  Communicator& control() { return *control_; }

  // Without checks ranks tell each other nothing: Agree returns `arguments`,
  // after a barrier if that is the call, and Share its own rank's outcome.
  void set_checks(bool checks) { checks_ = checks; }

  // Begins a call. Returns once every rank has come to it: of Send and Receive
  // the two that it is between. arguments: why this rank's are wrong, as a
  // phrase that continues "rank 1 called Gather(...) but ".
  //
  // Errors, the same on all of these ranks: kInvalidArgument if they disagree,
  // or one's arguments are wrong, with the calls and where they were made; the
  // control group's.
  absl::Status Agree(const Call& call, const absl::Status& arguments,
                     const CallSite& site);

  // Tells the ranks of the call how it goes here, and learns how it goes there.
  // Blocks until each has come here too. True if all are done; false if none
  // has failed. Error: of the lowest rank that failed; the control group's.
  absl::StatusOr<bool> Share(bool done, const absl::Status& own);

  // "on ranks 0, 2": which were not done when they last shared.
  std::string Unfinished() const;

 private:
  struct Message;

  bool IsPartner(int rank) const;  // Whether it can be another's.
  absl::StatusOr<std::vector<Message>> Exchange(const Message& own);
  absl::StatusOr<std::vector<Message>> ExchangeWithPartner(const Message& own);

  const std::unique_ptr<Communicator> control_;
  bool checks_ = true;
  int partner_ = -1;  // Of a Send or Receive that runs, else -1.
  CallSite site_;     // Of the call that runs.
  std::vector<int> unfinished_;
};

// One call's waits, between Peers::Agree and its end.
class CallProgress {
 public:
  // what: "rank 1: AllReduce(...) at ...", for errors. peers must outlive it.
  CallProgress(Peers& peers, std::string what, absl::Duration timeout)
      : peers_(peers),
        what_(std::move(what)),
        timeout_(timeout),
        deadline_(absl::Now() + timeout) {}

  // Asks `ready` until it says true, and now and then shares with the others
  // that this rank still works. Errors: `ready`'s; kDeadlineExceeded once the
  // call has lasted the timeout; another rank's. Then call Finish.
  template <typename Ready>  // absl::StatusOr<bool>()
  absl::Status WaitUntil(const Ready& ready) {
    for (int polls = 0;; ++polls) {
      const absl::StatusOr<bool> is_ready = ready();
      if (!is_ready.ok()) return is_ready.status();
      if (*is_ready) return absl::OkStatus();
      const absl::Status status = Pause(polls);
      if (!status.ok()) return status;
    }
  }

  // Ends the call with this rank's outcome, to which it adds what failed.
  // Returns once all ranks are done, or one has failed: the same for all.
  // Without checks: this rank's.
  absl::Status Finish(const absl::Status& own);

 private:
  absl::Status Pause(int polls);

  Peers& peers_;
  const std::string what_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  absl::Time next_share_ = absl::InfinitePast();
  bool told_ = false;  // Another rank failed, and all know.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_PEERS_H_
