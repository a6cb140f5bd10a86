// A mutex, a lock and a condition variable that clang's thread-safety analysis
// knows. They wrap the standard library's, because ThreadSanitizer does not see
// into the distribution's build of absl::Mutex.
#ifndef LOCKSTEP_BASE_MUTEX_H_
#define LOCKSTEP_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace lockstep {

// Fields marked ABSL_GUARDED_BY(mutex) can only be used while a MutexLock of
// the mutex exists, or in functions marked
// ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex).
class ABSL_LOCKABLE Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Tells the analysis that the calling thread holds the mutex, where the
  // analysis cannot see it: in a function that is called through a pointer.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex from its construction to its destruction.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : lock_(mutex.mutex_) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// Threads wait for a change of guarded fields. `ready` is called with the
// mutex held, and is marked ABSL_EXCLUSIVE_LOCKS_REQUIRED if it reads guarded
// fields.
class ConditionVariable {
 public:
  // Blocks until ready() returns true.
  template <typename Ready>
  void Wait(MutexLock& lock, Ready ready) {
    variable_.wait(lock.lock_, ready);
  }
  // Blocks until ready() returns true, for `limit` at most. Returns ready().
  template <typename Ready>
  bool WaitFor(MutexLock& lock, std::chrono::nanoseconds limit, Ready ready) {
    return variable_.wait_for(lock.lock_, limit, ready);
  }

  // Blocks until a notification, for `limit` at most. May return early.
  void WaitFor(MutexLock& lock, std::chrono::nanoseconds limit) {
    variable_.wait_for(lock.lock_, limit);
  }

  void NotifyOne() { variable_.notify_one(); }
  void NotifyAll() { variable_.notify_all(); }

 private:
  std::condition_variable variable_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_MUTEX_H_
