// MPI in this process: started once, finished as the process exits; and its
// error codes as statuses.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_RUNTIME_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_RUNTIME_H_

#include <mpi.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/process.h"

namespace lockstep {

// OK for MPI_SUCCESS, else kInternal: `what`, and MPI's text for the code.
absl::Status MpiStatus(int code, absl::string_view what);

// What a group has that MPI may write to, and so outlives its communicator.
class MpiGroupState {
 public:
  virtual ~MpiGroupState() = default;
  // Tells the other ranks that this one is gone. Never waits; may be called
  // while another thread uses the group.
  virtual void Leave() const = 0;
  // After Leave: looks for messages, without waiting. True once no more can
  // come and none is under way; it may then be destroyed.
  virtual bool Sweep() = 0;
};

// There is one, which is never destroyed. Thread safe.
//
// MPI blocks in its own start and end until every process of the job has come.
// So a thread of its own does both, and a rank waits for that thread only as
// long as it may.
class MpiRuntime {
 public:
  // Starts MPI with MPI_THREAD_MULTIPLE, unless the program has, or an earlier
  // call. A program that starts MPI itself also ends it, after the last
  // communicator. Errors: kFailedPrecondition outside mpirun and srun, or if
  // the program started MPI with less; kDeadlineExceeded after `timeout`;
  // kInternal for what MPI says; kFailedPrecondition once this process is at
  // its exit.
  static absl::StatusOr<MpiRuntime*> Start(absl::Duration timeout);

  // A duplicate of MPI_COMM_WORLD that returns its errors.
  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // kResourceExhausted if MPI has no such tag.
  absl::Status CheckTag(int64_t tag) const;

  // The number of groups of all processes that were begun before, which is the
  // same on all that join them in the same order.
  int64_t NextJoin();
  // A number for a split group that no other call gives on any process: each
  // process has its own residue modulo world_size().
  int64_t NextSplit();

  // A group is in use from Add to Retire, which leaves it and keeps it until it
  // has been swept. One that is in use as the process exits is left then.
  // Retired later than that, or in a forked child, it is kept and nobody is
  // told.
  void Add(const MpiGroupState& group);
  void Retire(std::unique_ptr<MpiGroupState> group);
  void SweepRetired();

  // How long the exit of this process may wait for the others': the largest
  // `timeout` given. `neighbours` are the processes of the job on this host;
  // once one of them is dead, or after a failure, it waits only so long that
  // all learn of it.
  void WaitAtExit(absl::Duration timeout,
                  std::vector<ProcessIdentity> neighbours);
  void NoteFailure();

 private:
  enum class State { kStarting, kRunning, kFailed, kEnding, kEnded };

  explicit MpiRuntime(bool owns_mpi);
  static void EndAtExit();
  void Run();
  absl::Status StartMpi();
  void EndMpi();
  bool AwaitOthers();
  bool LostANeighbour();
  bool NothingRetired();
  void End();
  bool IsThisProcess() const;  // False in a forked child.
  // False, and left alone, where MPI can no longer be used.
  bool LeaveInUse(const MpiGroupState& group);
  void LeaveGroupsInUse();
  absl::Duration ExitPatience();
  void Enter(State state, const absl::Status& status = absl::OkStatus());

  const bool owns_mpi_;
  const pid_t process_;
  // Written before kRunning, constant afterwards.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int world_size_ = 0;
  int largest_tag_ = 0;

  // Waits with a timeout are for these: absl::Mutex's need a library that only
  // newer releases of abseil have.
  absl::Notification start_is_over_;
  absl::Notification end_is_over_;
  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  absl::Status start_status_ ABSL_GUARDED_BY(mutex_);
  absl::Duration patience_ ABSL_GUARDED_BY(mutex_);
  std::vector<ProcessIdentity> neighbours_ ABSL_GUARDED_BY(mutex_);
  std::vector<const MpiGroupState*> in_use_ ABSL_GUARDED_BY(mutex_);
  bool failed_once_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t joins_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t splits_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Mutex retired_mutex_;
  std::vector<std::unique_ptr<MpiGroupState>> retired_
      ABSL_GUARDED_BY(retired_mutex_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_RUNTIME_H_
