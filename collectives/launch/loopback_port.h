// A TCP port of this host that nobody else is given by chance.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_LOOPBACK_PORT_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_LOOPBACK_PORT_H_

#include "collectives/launch/owned_fd.h"

namespace lockstep {

// A socket that is bound to `port` of 127.0.0.1 and does not listen.
struct LoopbackPort {
  OwnedFd socket;
  int port = 0;  // 0 if the host has no loopback or no port left.
};

// Takes a free port. While `socket` is open the kernel gives the port to no
// program that asks for any, but to who asks for this one with SO_REUSEADDR, as
// servers do: PyTorch's store, Gloo, ours.
LoopbackPort ReserveLoopbackPort();

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_LOOPBACK_PORT_H_
