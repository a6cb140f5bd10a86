#include "collectives/tcp/testing/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// The messages of a host's process, each one message of a SOCK_SEQPACKET.
// kReady carries the tap, then events follow, then the result. kRefused says
// why there is no network.
constexpr char kReady = 'r';
constexpr char kRefused = 'n';
constexpr char kEvent = 'e';
constexpr char kResult = '=';

ifreq Interface(const char* name) {
  ifreq request = {};
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return request;
}

bool TurnOn(int socket, const char* name) {
  ifreq request = Interface(name);
  if (ioctl(socket, SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP;
  return ioctl(socket, SIOCSIFFLAGS, &request) == 0;
}

bool SetAddress(int socket, unsigned long what, const std::string& address) {
  ifreq request = Interface("tap0");
  auto* const in = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  in->sin_family = AF_INET;
  inet_pton(AF_INET, address.c_str(), &in->sin_addr);
  return ioctl(socket, what, &request) == 0;
}

// Returns kUnavailable, which skips the test, only if the system refuses such a
// network to this process and the environment does not require it.
absl::Status SystemError(const char* what) {
  constexpr int kRefusals[] = {EPERM, EACCES, ENOSPC, ENOENT, ENODEV};
  const bool is_refused = std::ranges::count(kRefusals, errno) > 0;
  const bool is_skip =
      is_refused && std::getenv("LOCKSTEP_REQUIRE_HOSTS") == nullptr;
  return absl::Status(
      is_skip ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
      absl::StrCat("no network namespace: ", what, ": ", std::strerror(errno)));
}

// Forks a child with a network of its own, which runs `run` and ends. Does not
// use unshare(), which the system refuses to a process with several threads: a
// sanitizer may start a thread in each child of fork().
pid_t CloneWithNetwork(std::function<int()> run) {
  constexpr size_t kStackBytes = 1 << 20;
  const auto stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  return clone(
      [](void* it) { return (*static_cast<std::function<int()>*>(it))(); },
      stack.get() + kStackBytes, CLONE_NEWUSER | CLONE_NEWNET | SIGCHLD, &run);
}

// Sets up the network of this process. Returns the tap.
absl::StatusOr<OwnedFd> MakeTap(int host) {
  OwnedFd tap(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tap.open()) return SystemError("/dev/net/tun");
  ifreq request = Interface("tap0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  if (ioctl(tap.get(), TUNSETIFF, &request) != 0) {
    return SystemError("TUNSETIFF");
  }
  const OwnedFd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!SetAddress(control.get(), SIOCSIFADDR, TestHosts::AddressOf(host)) ||
      !SetAddress(control.get(), SIOCSIFNETMASK, "255.255.255.0") ||
      !TurnOn(control.get(), "tap0") || !TurnOn(control.get(), "lo")) {
    return absl::InternalError(
        absl::StrCat("setting up tap0: ", std::strerror(errno)));
  }
  return tap;
}

// Sends one message, with a descriptor unless fd is -1.
void Say(int channel, char kind, const std::string& text, int fd = -1) {
  std::string bytes = kind + text;
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  sendmsg(channel, &message, MSG_NOSIGNAL);
}

// Returns the next message and its descriptor; "" at the end.
std::string Hear(int channel, OwnedFd& fd) {
  std::string bytes(1 << 16, '\0');
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
  bytes.resize(static_cast<size_t>(size > 0 ? size : 0));
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
    int got = -1;
    std::memcpy(&got, CMSG_DATA(header), sizeof(got));
    fd = OwnedFd(got);
  }
  return bytes;
}

}  // namespace

std::string TestHosts::AddressOf(int host) {
  return absl::StrCat("10.77.0.", host + 1);
}

absl::StatusOr<std::unique_ptr<TestHosts>> TestHosts::Start(
    int count, const Wire& wire,
    const std::function<std::string(int, const std::function<void()>&)>& body) {
  std::unique_ptr<TestHosts> hosts(new TestHosts(wire));
  for (int host = 0; host < count; ++host) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return absl::ErrnoToStatus(errno, "socketpair");
    }
    OwnedFd here(ends[0]);
    OwnedFd there(ends[1]);
    const pid_t pid = CloneWithNetwork([&] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      here.Close();
      absl::StatusOr<OwnedFd> tap = MakeTap(host);
      if (!tap.ok()) {
        Say(there.get(), absl::IsUnavailable(tap.status()) ? kRefused : kResult,
            std::string(tap.status().message()));
        return 1;
      }
      Say(there.get(), kReady, "", tap->get());
      tap->Close();
      char go = 0;
      if (read(there.get(), &go, 1) != 1) return 1;
      Say(there.get(), kResult,
          body(host, [&there] { Say(there.get(), kEvent, ""); }));
      there.Close();
      pause();  // Until killed: ranks of one system see each other die.
      return 0;
    });
    if (pid < 0) return SystemError("clone");
    there.Close();  // Makes its end visible.
    hosts->hosts_.push_back({pid, std::move(here), OwnedFd(), ""});
    Host& made = hosts->hosts_.back();
    const std::string first = Hear(made.channel.get(), made.tap);
    if (first.empty()) return absl::InternalError("a host's process has died");
    if (first[0] == kRefused) return absl::UnavailableError(first.substr(1));
    if (first[0] != kReady) return absl::InternalError(first.substr(1));
  }
  hosts->forwarder_ = std::thread([raw = hosts.get()] { raw->Forward(); });
  for (const Host& host : hosts->hosts_) {
    if (write(host.channel.get(), "g", 1) != 1) break;
  }
  return hosts;
}

TestHosts::~TestHosts() {
  ends_ = true;
  if (forwarder_.joinable()) forwarder_.join();
  for (const Host& host : hosts_) {
    SendSignal(host.pid, SIGKILL);
    waitpid(host.pid, nullptr, 0);
  }
}

// Sends every frame to every other host.
void TestHosts::Forward() {
  struct Frame {
    Clock::time_point due;
    size_t from;
    std::string bytes;
  };
  std::deque<Frame> frames;
  std::mt19937 random(17);
  std::string buffer(1 << 16, '\0');
  const auto delay = absl::ToChronoNanoseconds(wire_.delay);
  while (!ends_) {
    std::vector<pollfd> taps;
    for (const Host& host : hosts_) {
      taps.push_back({host.tap.get(), POLLIN, 0});
    }
    timespec limit = {0, 10'000'000};
    if (!frames.empty()) {
      const auto left =
          std::chrono::nanoseconds(frames.front().due - Clock::now());
      limit.tv_nsec = std::clamp<int64_t>(left.count(), 0, limit.tv_nsec);
    }
    ppoll(taps.data(), taps.size(), &limit, nullptr);
    for (size_t from = 0; from < taps.size(); ++from) {
      if (taps[from].revents == 0) continue;
      const ssize_t size = read(taps[from].fd, buffer.data(), buffer.size());
      if (size <= 0 || static_cast<int>(from) == cut_off_) continue;
      if (static_cast<int>(random() % 1000) < wire_.lost_of_1000) continue;
      frames.push_back({Clock::now() + delay, from,
                        buffer.substr(0, static_cast<size_t>(size))});
    }
    while (!frames.empty() && frames.front().due <= Clock::now()) {
      const Frame& frame = frames.front();
      for (size_t to = 0; to < taps.size(); ++to) {
        if (to == frame.from || static_cast<int>(to) == cut_off_) continue;
        // A full queue loses the frame, as in a switch.
        if (write(taps[to].fd, frame.bytes.data(), frame.bytes.size()) < 0) {
          continue;
        }
      }
      frames.pop_front();
    }
  }
}

bool TestHosts::AwaitEvent(absl::Duration timeout) {
  const Deadline deadline(timeout);
  while (true) {
    std::vector<pollfd> channels;
    for (const Host& host : hosts_) {
      channels.push_back({host.channel.get(), POLLIN, 0});
    }
    if (std::ranges::none_of(channels,
                             [](const pollfd& each) { return each.fd >= 0; }) ||
        poll(channels.data(), channels.size(), PollMilliseconds(deadline)) <=
            0) {
      return false;
    }
    for (size_t i = 0; i < hosts_.size(); ++i) {
      if (channels[i].revents == 0) continue;
      OwnedFd none;
      const std::string message = Hear(hosts_[i].channel.get(), none);
      if (message.empty()) {
        hosts_[i].channel.Close();
      } else if (message[0] == kEvent) {
        return true;
      } else {
        hosts_[i].result = message.substr(1);
      }
    }
  }
}

std::vector<std::string> TestHosts::Collect(absl::Duration timeout) {
  const Deadline deadline(timeout);
  std::vector<std::string> results;
  for (const Host& host : hosts_) {
    while (host.result.empty() && host.channel.open() && !deadline.passed()) {
      AwaitEvent(deadline.remaining());
    }
    results.push_back(host.result);
  }
  return results;
}

}  // namespace lockstep
