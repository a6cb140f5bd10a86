// Sleeping on a word of memory that other threads or processes share.
#ifndef LOCKSTEP_COLLECTIVES_HOST_FUTEX_H_
#define LOCKSTEP_COLLECTIVES_HOST_FUTEX_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep {

// Sleeps while `word` holds `expected`, until FutexWake or `timeout`. May
// return early: the caller looks again.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               std::chrono::nanoseconds timeout);

// Wakes all that sleep on `word`, in any process that maps it.
void FutexWake(std::atomic<uint32_t>& word);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_FUTEX_H_
