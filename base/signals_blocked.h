// Keeps signals away from a library's threads, so that the program's own
// threads handle them.
#ifndef LOCKSTEP_BASE_SIGNALS_BLOCKED_H_
#define LOCKSTEP_BASE_SIGNALS_BLOCKED_H_

#include <signal.h>

namespace lockstep {

// Blocks every signal in the calling thread until this object is destroyed.
// Threads that are started in the meantime inherit the mask and so handle no
// signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_SIGNALS_BLOCKED_H_
