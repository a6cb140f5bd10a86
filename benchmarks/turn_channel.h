// How the driver of a benchmark talks to ranks that others may have started.
#ifndef LOCKSTEP_BENCHMARKS_TURN_CHANNEL_H_
#define LOCKSTEP_BENCHMARKS_TURN_CHANNEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {

// The longest message that goes over a channel.
inline constexpr int64_t kLargestTurnMessage = 64 << 10;

// One end of a connection between two processes of one user and host, over
// which whole messages go. Whoever waits for one sleeps in the kernel: it takes
// no time from whom it waits for.
class TurnChannel {
 public:
  TurnChannel() = default;
  explicit TurnChannel(OwnedFd fd) : fd_(std::move(fd)) {}

  // Connects to a listener by its name. Error: the system's.
  static absl::StatusOr<TurnChannel> Connect(const std::string& name);

  // Errors: kUnavailable if the other end is gone; kInvalidArgument for a
  // message over kLargestTurnMessage.
  absl::Status Send(absl::string_view message);

  // The next message. Errors: kUnavailable if the other end is gone;
  // kDeadlineExceeded.
  absl::StatusOr<std::string> Receive(absl::Time deadline);

  int fd() const { return fd_.get(); }

 private:
  OwnedFd fd_;
};

// Where ranks connect. It has a name, but no file: nothing is left behind.
class TurnListener {
 public:
  static absl::StatusOr<TurnListener> Create();

  // To be given to Connect.
  const std::string& name() const { return name_; }

  // Ends the connections that were not accepted; no others can be made.
  void Close() { fd_.Close(); }

  // Becomes readable when there is something to accept.
  int fd() const { return fd_.get(); }

  // The next connection, which is there already; those of other users are
  // refused. Error: kUnavailable if there is none.
  absl::StatusOr<TurnChannel> Accept();

 private:
  TurnListener(OwnedFd fd, std::string name)
      : fd_(std::move(fd)), name_(std::move(name)) {}

  OwnedFd fd_;
  std::string name_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_TURN_CHANNEL_H_
