// What a rank says of itself as it joins a group.
#include "collectives/mpi/mpi_introduction.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <string>

#include "collectives/group_options.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {
namespace {

// A boot of a kernel, and a space of process numbers in it: containers of one
// host may each have their own.
std::string System() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) {
    space[0] = '\0';
  }
  return boot + space;
}

template <size_t kSize>
void Copy(const std::string& from, std::array<char, kSize>& to) {
  std::copy_n(from.data(), std::min(from.size(), kSize - 1), to.data());
}

}  // namespace

MpiIntroduction IntroduceSelf(const GroupOptions& options) {
  MpiIntroduction self;
  self.process = ThisProcess();
  gethostname(self.host.data(), self.host.size() - 1);
  Copy(System(), self.system);
  self.slot_bytes = options.slot_bytes;
  self.algorithm = options.algorithm;
  return self;
}

}  // namespace lockstep
