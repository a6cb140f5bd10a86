#include "collectives/mpi/mpi_runtime.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_macros.h"

namespace lockstep {

absl::Status MpiStatus(int code, absl::string_view what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  MPI_Error_string(code, text, &size);
  return absl::InternalError(absl::StrCat(what, ": ", text));
}

namespace {

// The time that the other ranks have to report a failure. If a rank exits
// without MPI_Finalize, mpirun ends the job.
constexpr absl::Duration kPatienceAfterFailure = absl::Seconds(1);

// The time for MPI_Finalize itself, once all ranks are at their exits.
constexpr absl::Duration kFinalizePatience = absl::Seconds(5);

constexpr std::chrono::microseconds kLookEvery(200);
constexpr absl::Duration kLookForDeadEvery = absl::Milliseconds(50);

ABSL_CONST_INIT absl::Mutex started_mutex(absl::kConstInit);
MpiRuntime* started = nullptr;  // Set once, under the mutex.

bool IsInitialized() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  return initialized != 0;
}

bool IsFinalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

// Returns an error if no launcher started this process. Both mpirun and srun
// serve PMIx. Without PMIx, MPI_Init would start a daemon.
absl::Status CheckLauncher() {
  if (IsInitialized() || std::getenv("PMIX_RANK") != nullptr) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "the mpi backend needs mpirun (or srun --mpi=pmix): PMIX_RANK is not "
      "set");
}

absl::Status HasEnded() {
  return absl::FailedPreconditionError(
      "MPI has ended, as this process is at its exit");
}

}  // namespace

absl::StatusOr<MpiRuntime*> MpiRuntime::Start(absl::Duration timeout) {
  MpiRuntime* runtime;
  {
    const absl::MutexLock lock(&started_mutex);
    if (started == nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(CheckLauncher());
      started = new MpiRuntime(/*owns_mpi=*/!IsInitialized());
      std::thread(&MpiRuntime::Run, started).detach();
      if (started->owns_mpi_) std::atexit(&MpiRuntime::EndAtExit);
    }
    runtime = started;
  }
  if (!runtime->start_is_over_.WaitForNotificationWithTimeout(timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("a process of the MPI job did not start MPI within ",
                     absl::FormatDuration(timeout)));
  }
  const absl::MutexLock lock(&runtime->mutex_);
  LOCKSTEP_RETURN_IF_ERROR(runtime->start_status_);
  return runtime;
}

// Runs the thread that MPI knows as its main thread, if this library starts
// MPI.
void MpiRuntime::Run() {
  const absl::Status status = StartMpi();
  Enter(status.ok() ? State::kRunning : State::kFailed, status);
  start_is_over_.Notify();
  if (!owns_mpi_) return;
  {
    const absl::MutexLock lock(&mutex_);
    const auto is_asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state_ == State::kEnding;
    };
    mutex_.Await(absl::Condition(&is_asked));
  }
  if (status.ok()) EndMpi();
  Enter(State::kEnded, HasEnded());
  end_is_over_.Notify();
}

absl::Status MpiRuntime::StartMpi() {
  int provided = 0;
  if (owns_mpi_) {
    LOCKSTEP_RETURN_IF_ERROR(MpiStatus(
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
        "MPI_Init_thread"));
  } else {
    MPI_Query_thread(&provided);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(
        absl::StrCat("MPI runs at thread level ", provided,
                     " and the mpi backend needs MPI_THREAD_MULTIPLE"));
  }
  // By default an error in MPI ends the job.
  if (owns_mpi_) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  LOCKSTEP_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &world_size_);
  int* largest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest_tag, &found);
  largest_tag_ = found != 0 ? *largest_tag : 32767;  // The standard's minimum.
  return absl::OkStatus();
}

// Ends MPI. Ranks that are at their exits send nothing more. Once all ranks are
// there, and their earlier messages have arrived, MPI_Finalize does not wait.
// Otherwise the process ends without MPI_Finalize.
void MpiRuntime::EndMpi() {
  if (!AwaitOthers()) return;
  const absl::Time soon = absl::Now() + kPatienceAfterFailure;
  while (!AllAreSwept() && absl::Now() < soon) {
    std::this_thread::sleep_for(kLookEvery);
  }
  if (!IsFinalized()) MPI_Finalize();
}

bool MpiRuntime::AwaitOthers() {
  MPI_Request all_here = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm_, &all_here) != MPI_SUCCESS) return false;
  const absl::Time start = absl::Now();
  absl::Time next_look = start + kLookForDeadEvery;
  while (true) {
    int here = 0;
    if (MPI_Test(&all_here, &here, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return false;
    }
    SweepRetired();
    if (here != 0) return true;
    const absl::Time now = absl::Now();
    if (now >= next_look) {
      if (LostANeighbour()) NoteFailure();
      next_look = now + kLookForDeadEvery;
    }
    if (now >= start + ExitPatience()) return false;
    std::this_thread::sleep_for(kLookEvery);
  }
}

// Returns whether a process of this host has ended. MPI_Finalize lets no
// process return before all have called it. A process that ended before this
// rank calls it will therefore never call it.
bool MpiRuntime::LostANeighbour() {
  const absl::MutexLock lock(&mutex_);
  return !std::all_of(neighbours_.begin(), neighbours_.end(), &IsAlive);
}

MpiRuntime::MpiRuntime(bool owns_mpi)
    : owns_mpi_(owns_mpi), process_(getpid()) {}

// Ends MPI at the exit of this process. A forked child inherits the handler but
// none of the threads.
void MpiRuntime::EndAtExit() {
  if (started->IsThisProcess()) started->End();
}

bool MpiRuntime::IsThisProcess() const { return getpid() == process_; }

void MpiRuntime::End() {
  {
    const absl::MutexLock lock(&mutex_);
    if (state_ != State::kRunning) return;
  }
  LeaveGroupsInUse();
  const absl::Duration patience =
      ExitPatience() + kPatienceAfterFailure + kFinalizePatience;
  Enter(State::kEnding, HasEnded());
  end_is_over_.WaitForNotificationWithTimeout(patience);
}

void MpiRuntime::Enter(State state, const absl::Status& status) {
  const absl::MutexLock lock(&mutex_);
  state_ = state;
  start_status_ = status;
}

int64_t MpiRuntime::NextJoin() {
  const absl::MutexLock lock(&mutex_);
  return joins_++;
}

int64_t MpiRuntime::NextSplit() {
  const absl::MutexLock lock(&mutex_);
  return splits_++ * world_size_ + rank_;
}

absl::Status MpiRuntime::CheckTag(int64_t tag) const {
  if (tag <= largest_tag_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("this process has joined all groups that MPI's ",
                   largest_tag_, " tags allow"));
}

void MpiRuntime::Add(const MpiGroupState& group) {
  const absl::MutexLock lock(&mutex_);
  in_use_.push_back(&group);
}

void MpiRuntime::Retire(std::unique_ptr<MpiGroupState> group) {
  if (!LeaveInUse(*group)) {
    static_cast<void>(group.release());  // MPI may still write to it.
    return;
  }
  {
    const absl::MutexLock lock(&retired_mutex_);
    retired_.push_back(std::move(group));
  }
  SweepRetired();
}

// Leaves a group. Holds the mutex, so that MPI does not end in between.
bool MpiRuntime::LeaveInUse(const MpiGroupState& group) {
  if (!IsThisProcess()) return false;
  const absl::MutexLock lock(&mutex_);
  if (state_ != State::kRunning || IsFinalized()) return false;
  in_use_.erase(std::find(in_use_.begin(), in_use_.end(), &group));
  group.Leave();
  return true;
}

// Leaves the groups that the exiting process still uses. The other ranks must
// learn of that as a failure.
void MpiRuntime::LeaveGroupsInUse() {
  const absl::MutexLock lock(&mutex_);
  for (const MpiGroupState* group : in_use_) {
    group->Leave();
    failed_once_ = true;
  }
}

void MpiRuntime::SweepRetired() {
  const absl::MutexLock lock(&retired_mutex_);
  retired_.erase(
      std::remove_if(retired_.begin(), retired_.end(),
                     [](const auto& group) { return group->Sweep(); }),
      retired_.end());
}

bool MpiRuntime::AllAreSwept() {
  SweepRetired();
  const absl::MutexLock lock(&retired_mutex_);
  return retired_.empty();
}

void MpiRuntime::WaitAtExit(absl::Duration timeout,
                            std::vector<ProcessIdentity> neighbours) {
  const absl::MutexLock lock(&mutex_);
  patience_ = std::max(patience_, timeout);
  neighbours_ = std::move(neighbours);
}

void MpiRuntime::NoteFailure() {
  const absl::MutexLock lock(&mutex_);
  failed_once_ = true;
}

absl::Duration MpiRuntime::ExitPatience() {
  const absl::MutexLock lock(&mutex_);
  return failed_once_ ? std::min(patience_, kPatienceAfterFailure) : patience_;
}

}  // namespace lockstep
