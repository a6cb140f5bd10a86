// A socket, bound and kept.
#include "collectives/launch/loopback_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "collectives/launch/owned_fd.h"

namespace lockstep {

LoopbackPort ReserveLoopbackPort() {
  LoopbackPort result = {
      .socket = OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&address);
  const int fd = result.socket.get();
  if (!result.socket.open() ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, any, size) != 0 || getsockname(fd, any, &size) != 0) {
    return {};
  }
  result.port = ntohs(address.sin_port);
  return result;
}

}  // namespace lockstep
