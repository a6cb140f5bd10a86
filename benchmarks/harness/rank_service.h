// The messages between the driver of a benchmark and its ranks, which the
// driver or an external launcher has started: values as bytes, connections, and
// a rank's side.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_RANK_SERVICE_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_RANK_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {

// A struct that lists its members, so that they are sent one after the other:
//
//   struct Answer {
//     std::vector<double> seconds;
//     std::string note;
//     static auto Members(auto& self) {
//       return std::tie(self.seconds, self.note);
//     }
//   };
template <typename T>
concept ListsMembers = requires(T& value) {
  T::Members(value);
};

// Appends the value as bytes. Trivially copyable values are sent as they lie in
// memory, because both ends are programs of one build on one machine. Strings,
// vectors, and structs that list their members are sent part by part.
template <typename T>
void AppendBytes(const T& value, std::string& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline void AppendBytes(const std::string& text, std::string& bytes) {
  AppendBytes(static_cast<int64_t>(text.size()), bytes);
  bytes += text;
}
template <typename T>
void AppendBytes(const std::vector<T>& values, std::string& bytes);
template <ListsMembers T>
void AppendBytes(const T& value, std::string& bytes) {
  std::apply([&](const auto&... member) { (AppendBytes(member, bytes), ...); },
             T::Members(value));
}
template <typename T>
void AppendBytes(const std::vector<T>& values, std::string& bytes) {
  AppendBytes(static_cast<int64_t>(values.size()), bytes);
  for (const T& value : values) AppendBytes(value, bytes);
}

// Takes a value off the front of the bytes. Returns false if the bytes end too
// early.
template <typename T>
bool TakeBytes(absl::string_view& bytes, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return true;
}
// Takes the count of items that take at least a byte each.
inline bool TakeCount(absl::string_view& bytes, int64_t& count) {
  return TakeBytes(bytes, count) && count >= 0 &&
         count <= static_cast<int64_t>(bytes.size());
}
inline bool TakeBytes(absl::string_view& bytes, std::string& text) {
  int64_t count = 0;
  if (!TakeCount(bytes, count)) return false;
  text = std::string(bytes.substr(0, static_cast<size_t>(count)));
  bytes.remove_prefix(text.size());
  return true;
}
template <typename T>
bool TakeBytes(absl::string_view& bytes, std::vector<T>& values);
template <ListsMembers T>
bool TakeBytes(absl::string_view& bytes, T& value) {
  return std::apply(
      [&](auto&... member) { return (TakeBytes(bytes, member) && ...); },
      T::Members(value));
}
template <typename T>
bool TakeBytes(absl::string_view& bytes, std::vector<T>& values) {
  int64_t count = 0;
  if (!TakeCount(bytes, count)) return false;
  values.clear();  // Grows as elements arrive, whatever the count.
  for (int64_t i = 0; i < count; ++i) {
    if (!TakeBytes(bytes, values.emplace_back())) return false;
  }
  return true;
}

template <typename T>
std::string Encode(const T& value) {
  std::string bytes;
  AppendBytes(value, bytes);
  return bytes;
}

// Error: kDataLoss if the bytes are not exactly one T.
template <typename T>
absl::StatusOr<T> Decode(absl::string_view bytes) {
  T value = {};
  if (TakeBytes(bytes, value) && bytes.empty()) return value;
  return absl::DataLossError("a message of another size than expected");
}

// The longest message of a channel.
inline constexpr int64_t kLargestTurnMessage = 64 << 20;

// One end of a connection between two processes of one user and host. The
// connection carries whole messages. A process that waits for a message sleeps
// in the kernel, so it takes no time from the sender. Not thread safe.
class TurnChannel {
 public:
  TurnChannel() = default;
  explicit TurnChannel(OwnedFd fd) : fd_(std::move(fd)) {}

  // Connects to a listener by its name. Error: the system's.
  static absl::StatusOr<TurnChannel> Connect(const std::string& name);

  // Sends a message. A long message waits until the other end reads it. Errors:
  // kUnavailable if the other end is gone; kInvalidArgument for a message over
  // kLargestTurnMessage.
  absl::Status Send(absl::string_view message);

  // Returns the next message. Errors: kUnavailable if the other end is gone;
  // kDeadlineExceeded; CheckInterrupted's; kDataLoss for bytes that Send did
  // not write. After an error no further message can be read.
  absl::StatusOr<std::string> Receive(const Deadline& deadline);

  int fd() const { return fd_.get(); }

 private:
  absl::StatusOr<std::string> ReceivePacket(const Deadline& deadline);

  OwnedFd fd_;
};

// The socket that ranks connect to. It has a name but no file, so that nothing
// is left behind.
class TurnListener {
 public:
  TurnListener() = default;  // Nobody can connect.
  static absl::StatusOr<TurnListener> Create();

  // The argument for Connect.
  const std::string& name() const { return name_; }

  // Ends the connections that were not accepted. No others can be made.
  void Close() { fd_.Close(); }

  // Becomes readable when there is a connection to accept.
  int fd() const { return fd_.get(); }

  // Returns the next connection, which must be pending. Connections of other
  // users are refused. Error: kUnavailable if there is none.
  absl::StatusOr<TurnChannel> Accept();

 private:
  TurnListener(OwnedFd fd, std::string name)
      : fd_(std::move(fd)), name_(std::move(name)) {}

  OwnedFd fd_;
  std::string name_;
};

// The first message of a rank after it connects.
struct RankHello {
  int32_t rank = 0;
  int32_t world_size = 0;
};

// Convert between a message and an answer, or the error in its place.
// DecodeAnswer returns kDataLoss for bytes that are not an answer; otherwise it
// returns the answer or the error that was answered.
std::string EncodeAnswer(const absl::StatusOr<std::string>& answer);
absl::StatusOr<std::string> DecodeAnswer(absl::string_view bytes);

// Connects to the driver's listener, says which rank this is, and answers
// messages. In between it sleeps in the kernel. Returns OK when the driver
// closes the connection. Errors: those of connecting and sending; the error of
// `answer`, which was sent to the driver too.
absl::Status ServeMessages(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<std::string>(absl::string_view)>&
        answer);

// The same with the types of Encode. `take` returns absl::StatusOr of the type
// that RankTeam::Ask returns to the driver.
template <typename Request, typename Take>
absl::Status ServeTurns(const std::string& listener, const RankHello& hello,
                        const Take& take) {
  return ServeMessages(
      listener, hello,
      [&take](absl::string_view message) -> absl::StatusOr<std::string> {
        LOCKSTEP_ASSIGN_OR_RETURN(const Request request,
                                  Decode<Request>(message));
        LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, take(request));
        return Encode(answer);
      });
}

// The times of a rank: the seconds of each call, and the number of wrong
// elements that the calls left.
struct TimedCalls {
  std::vector<double> seconds;
  int64_t wrong = 0;

  static auto Members(auto& self) { return std::tie(self.seconds, self.wrong); }
};

// Combines the times of ranks that made the same calls. A call takes as long as
// on its slowest rank, and all wrong elements count. ranks: at least one.
// Error: kDataLoss if they timed different numbers of calls.
absl::StatusOr<TimedCalls> SlowestOf(std::span<const TimedCalls> ranks);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_RANK_SERVICE_H_
