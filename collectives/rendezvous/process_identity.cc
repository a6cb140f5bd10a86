// Processes as /proc shows them.
#include "collectives/rendezvous/process_identity.h"

#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

#include "collectives/process_stat.h"

namespace lockstep {

ProcessIdentity ThisProcess() {
  const int32_t pid = getpid();
  const std::optional<ProcessStat> stat = ReadProcessStat(pid);
  return {pid, stat.has_value() ? stat->start_ticks : 0};
}

bool IsAlive(const ProcessIdentity& process) {
  const std::optional<ProcessStat> stat = ReadProcessStat(process.pid);
  return stat.has_value() && stat->state != 'Z' && stat->state != 'X' &&
         stat->start_ticks == process.start_ticks;
}

uint64_t TicksSinceHostStart() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const uint64_t ticks = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(now.tv_sec) * ticks +
         static_cast<uint64_t>(now.tv_nsec) * ticks / 1'000'000'000;
}

}  // namespace lockstep
