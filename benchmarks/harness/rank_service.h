// How the driver of a benchmark and the ranks that it, or somebody else's
// launcher, has started talk to each other: values as bytes, connections, and a
// rank's side.
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

// A struct that lists its members, so that they travel one after the other:
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

// Appends the value as bytes: of types that can be copied byte by byte, as they
// lie in memory, since both ends are programs of one build on one machine;
// strings; vectors; and structs that list their members.
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

// Takes a value off the front of the bytes; false where they end too early.
template <typename T>
bool TakeBytes(absl::string_view& bytes, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return true;
}
// A count of what takes at least a byte each.
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
  values.clear();  // Grows as elements arrive, whatever the count says.
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

// Error: kDataLoss for bytes that are no T, the whole T and nothing else.
template <typename T>
absl::StatusOr<T> Decode(absl::string_view bytes) {
  T value = {};
  if (TakeBytes(bytes, value) && bytes.empty()) return value;
  return absl::DataLossError("a message of another size than expected");
}

// The longest message that goes over a channel.
inline constexpr int64_t kLargestTurnMessage = 64 << 20;

// One end of a connection between two processes of one user and host, over
// which whole messages go. Whoever waits for one sleeps in the kernel: it takes
// no time from whom it waits for. Not thread safe.
class TurnChannel {
 public:
  TurnChannel() = default;
  explicit TurnChannel(OwnedFd fd) : fd_(std::move(fd)) {}

  // Connects to a listener by its name. Error: the system's.
  static absl::StatusOr<TurnChannel> Connect(const std::string& name);

  // A long message waits for the other end to read it. Errors: kUnavailable if
  // the other end is gone; kInvalidArgument for a message over
  // kLargestTurnMessage.
  absl::Status Send(absl::string_view message);

  // The next message. Errors: kUnavailable if the other end is gone;
  // kDeadlineExceeded; CheckInterrupted's; kDataLoss for what Send did not
  // write. After an error no other message can be read.
  absl::StatusOr<std::string> Receive(const Deadline& deadline);

  int fd() const { return fd_.get(); }

 private:
  absl::StatusOr<std::string> ReceivePacket(const Deadline& deadline);

  OwnedFd fd_;
};

// Where ranks connect. It has a name, but no file: nothing is left behind.
class TurnListener {
 public:
  TurnListener() = default;  // Nobody can connect.
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

// What a rank says of itself when it connects.
struct RankHello {
  int32_t rank = 0;
  int32_t world_size = 0;
};

// An answer, or the error in its place, as one message, and back. Error of
// DecodeAnswer: kDataLoss for bytes that are no answer; else the error that was
// answered.
std::string EncodeAnswer(const absl::StatusOr<std::string>& answer);
absl::StatusOr<std::string> DecodeAnswer(absl::string_view bytes);

// Connects to the driver's listener, says who it is, and answers messages until
// the driver closes the connection: then it returns OK. In between it sleeps in
// the kernel. Error: that of connecting, or that of `answer`, which the driver
// has been told.
absl::Status ServeMessages(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<std::string>(absl::string_view)>&
        answer);

// The same with the types of Encode: `take` returns absl::StatusOr of what
// RankTeam::Ask gives the driver.
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

// What a rank timed: seconds of each call, and how many of the elements that
// they left are wrong.
struct TimedCalls {
  std::vector<double> seconds;
  int64_t wrong = 0;

  static auto Members(auto& self) { return std::tie(self.seconds, self.wrong); }
};

// Of ranks that made the same calls: a call takes as long as on its slowest
// rank, and all wrong elements count. ranks: at least one. Error: kDataLoss if
// they timed different numbers of calls.
absl::StatusOr<TimedCalls> SlowestOf(std::span<const TimedCalls> ranks);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_RANK_SERVICE_H_
