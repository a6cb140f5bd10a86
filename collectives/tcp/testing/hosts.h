// Hosts for tests: network namespaces on one wire, which delays and loses what
// it is told to, and from which a host can be cut off.
#ifndef LOCKSTEP_COLLECTIVES_TCP_TESTING_HOSTS_H_
#define LOCKSTEP_COLLECTIVES_TCP_TESTING_HOSTS_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"

namespace lockstep {

struct Wire {
  absl::Duration delay = absl::ZeroDuration();  // One way.
  int lost_of_1000 = 0;  // Frames, drawn with a fixed seed.
};

// Each host is a process with a network of its own: loopback, and an interface
// (a tap, so that the wire is this process, and needs no module of the kernel)
// with the address AddressOf(host). A cut is silent: the hosts see no link go
// down, and no error.
class TestHosts {
 public:
  // Forks `count` hosts and runs body(host, event) in each, once all have their
  // network; event() wakes AwaitEvent here. For single-threaded processes.
  // Error: kUnavailable, with what the system said, where it allows no
  // namespace or no tap; with LOCKSTEP_REQUIRE_HOSTS in the environment that is
  // kInternal, as is any other failure.
  static absl::StatusOr<std::unique_ptr<TestHosts>> Start(
      int count, const Wire& wire,
      const std::function<
          std::string(int host, const std::function<void()>& event)>& body);

  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;
  ~TestHosts();

  static std::string AddressOf(int host);  // "10.77.0.1" for host 0.

  // Returns once an event has come; false at the deadline.
  bool AwaitEvent(absl::Duration timeout);
  void CutOff(int host) { cut_off_ = host; }
  // What the bodies returned, by host; "" for one that did not end in time.
  std::vector<std::string> Collect(absl::Duration timeout);

 private:
  struct Host {
    pid_t pid = -1;
    OwnedFd channel;  // To the process.
    OwnedFd tap;
    std::string result;
  };

  explicit TestHosts(const Wire& wire) : wire_(wire) {}
  void Forward();

  const Wire wire_;
  std::vector<Host> hosts_;
  std::atomic<int> cut_off_{-1};
  std::atomic<bool> ends_{false};
  std::thread forwarder_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TCP_TESTING_HOSTS_H_
