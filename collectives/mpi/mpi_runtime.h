// MPI in this process, started once and finished as the process exits, and its
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

// Returns OK for MPI_SUCCESS, else kInternal: `what`, and MPI's text for the
// code.
absl::Status MpiStatus(int code, absl::string_view what);

// The part of a group that MPI may write to. It outlives the communicator.
class MpiGroupState {
 public:
  virtual ~MpiGroupState() = default;
  // Tells the other ranks that this one has left. Never waits; may be called
  // while another thread uses the group.
  virtual void Leave() const = 0;
  // Polls for messages after Leave, without waiting. Returns true once no
  // message can arrive and none is under way; the caller may then destroy this
  // object.
  virtual bool Sweep() = 0;
};

// The one MPI runtime of the process, which is never destroyed. Thread safe.
//
// MPI blocks in its own start and end until every process of the job has come.
// A separate thread therefore does both, and a rank waits for that thread only
// until its timeout.
class MpiRuntime {
 public:
  // Starts MPI with MPI_THREAD_MULTIPLE, unless the program or an earlier call
  // has started it. A program that starts MPI itself also ends it, after the
  // last communicator.
  //
  // Errors: kFailedPrecondition outside mpirun and srun, if the program started
  // MPI with a lower thread level, or if this process is exiting;
  // kDeadlineExceeded after `timeout`; kInternal for MPI's errors.
  static absl::StatusOr<MpiRuntime*> Start(absl::Duration timeout);

  // Returns a duplicate of MPI_COMM_WORLD that returns its errors.
  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Returns kResourceExhausted if MPI has no such tag.
  absl::Status CheckTag(int64_t tag) const;

  // Returns the number of earlier groups of all processes. It is the same on
  // all processes that join these groups in the same order.
  int64_t NextJoin();
  // Returns a number for a split group that no other call returns on any
  // process. Each process has its own residue modulo world_size().
  int64_t NextSplit();

  // Add and Retire a group. A group is in use from Add to Retire. Retire leaves
  // the group and keeps it until it has been swept. If a group is still in use
  // when the process exits, the exit leaves it. If a group is retired after
  // that, or in a forked child, it is kept and the other ranks are not told.
  void Add(const MpiGroupState& group);
  void Retire(std::unique_ptr<MpiGroupState> group);
  void SweepRetired();

  // Sets how long the exit of this process may wait for the other processes:
  // the largest `timeout` given. `neighbours` are the processes of the job on
  // this host. If one of them has died, or after a failure, the exit waits only
  // until all can have learned of it.
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
  bool AllAreSwept();
  void End();
  bool IsThisProcess() const;  // False in a forked child.
  // Returns false, and does nothing, if MPI can no longer be used.
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

  // Notifications, because waits with a timeout on an absl::Mutex need a
  // library that only newer releases of abseil have.
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
