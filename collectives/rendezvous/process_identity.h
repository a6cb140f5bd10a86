// Telling a process from a later one that was given the same number.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROCESS_IDENTITY_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROCESS_IDENTITY_H_

#include <cstdint>

namespace lockstep {

// A process of this host, for as long as the host is up.
struct ProcessIdentity {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // Clock ticks (10 ms) after the host's start.

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

ProcessIdentity ThisProcess();

// False once it has ended, zombies included. A stopped process is alive.
// Cost: reads one file of /proc.
bool IsAlive(const ProcessIdentity& process);

// Now, on the clock of ProcessIdentity::start_ticks.
uint64_t TicksSinceHostStart();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_PROCESS_IDENTITY_H_
