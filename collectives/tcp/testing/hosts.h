// Hosts for tests: network namespaces on one wire. The wire can delay frames,
// lose frames and cut off a host.
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
  absl::Duration delay = absl::ZeroDuration();  // In one direction.
  int lost_of_1000 = 0;  // Lost frames, drawn with a fixed seed.
};

// Hosts that are processes, each with a network of its own: loopback, and an
// interface with the address AddressOf(host). The interface is a tap, so this
// process is the wire, and no kernel module is needed. A cut is silent: the
// hosts see no link go down, and no error.
class TestHosts {
 public:
  // Forks `count` hosts and runs body(host, event) in each, once all have their
  // network. event() wakes AwaitEvent here. For single-threaded processes.
  //
  // Errors: kUnavailable, with the system's error, if the system allows no
  // namespace or no tap. With LOCKSTEP_REQUIRE_HOSTS in the environment that is
  // kInternal, like any other failure.
  static absl::StatusOr<std::unique_ptr<TestHosts>> Start(
      int count, const Wire& wire,
      const std::function<
          std::string(int host, const std::function<void()>& event)>& body);

  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;
  ~TestHosts();

  static std::string AddressOf(int host);  // "10.77.0.1" for host 0.

  // Waits for an event. Returns false at the deadline.
  bool AwaitEvent(absl::Duration timeout);
  void CutOff(int host) { cut_off_ = host; }
  // Returns the results of the bodies, by host; "" for a body that did not end
  // in time.
  std::vector<std::string> Collect(absl::Duration timeout);

 private:
  struct Host {
    pid_t pid = -1;
    OwnedFd channel;  // The socket to the process.
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
