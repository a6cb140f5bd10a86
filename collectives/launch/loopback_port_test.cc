#include "collectives/launch/loopback_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>
#include <vector>

#include "collectives/launch/owned_fd.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// The errno of binding to the port and listening there; 0 if that works.
int Listen(int port, bool reuse) {
  const OwnedFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<in_port_t>(port));
  setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  errno = 0;
  if (bind(server.get(), reinterpret_cast<sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(server.get(), 1) != 0) {
    return errno;
  }
  return 0;
}

TEST(LoopbackPortTest, IsForWhoAsksForItByNumber) {
  LoopbackPort port = ReserveLoopbackPort();
  ASSERT_GT(port.port, 0);
  EXPECT_EQ(Listen(port.port, /*reuse=*/true), 0);
  EXPECT_EQ(Listen(port.port, /*reuse=*/false), EADDRINUSE);
  port.socket.Close();
  EXPECT_EQ(Listen(port.port, /*reuse=*/false), 0);
}

TEST(LoopbackPortTest, IsGivenOnce) {
  std::vector<LoopbackPort> ports;
  std::set<int> numbers;
  for (int i = 0; i < 100; ++i) {
    ports.push_back(ReserveLoopbackPort());
    numbers.insert(ports.back().port);
  }
  EXPECT_EQ(numbers.size(), ports.size());
}

}  // namespace
}  // namespace lockstep
