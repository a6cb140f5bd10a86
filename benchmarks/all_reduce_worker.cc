// Receive, take, answer.
#include "benchmarks/all_reduce_worker.h"

#include <cstring>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/turn_channel.h"

namespace lockstep {
namespace {

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
absl::StatusOr<T> FromBytes(absl::string_view bytes) {
  T value;
  if (bytes.size() != sizeof(T)) {
    return absl::DataLossError("a message of another size than expected");
  }
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

std::string Serialize(const RankHello& hello) { return BytesOf(hello); }

std::string Serialize(const TurnRequest& request) { return BytesOf(request); }

absl::StatusOr<RankHello> ParseHello(absl::string_view bytes) {
  return FromBytes<RankHello>(bytes);
}

absl::StatusOr<TurnRequest> ParseRequest(absl::string_view bytes) {
  return FromBytes<TurnRequest>(bytes);
}

absl::Status ServeTurns(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<TurnResult>(const TurnRequest&)>& take) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnChannel driver, TurnChannel::Connect(listener));
  LOCKSTEP_RETURN_IF_ERROR(driver.Send(Serialize(hello)));
  while (true) {
    const absl::StatusOr<std::string> message =
        driver.Receive(absl::InfiniteFuture());
    if (!message.ok()) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(const TurnRequest request,
                              ParseRequest(*message));
    const absl::StatusOr<TurnResult> answer = take(request);
    LOCKSTEP_RETURN_IF_ERROR(driver.Send(SerializeAnswer(answer)));
    LOCKSTEP_RETURN_IF_ERROR(answer.status());
  }
}

absl::Status ServeTurns(const std::string& listener,
                        AllReduceSubject& subject) {
  TurnTaker taker(subject);
  return ServeTurns(
      listener, {subject.rank(), subject.world_size()},
      [&](const TurnRequest& request) { return taker.Take(request); });
}

}  // namespace lockstep
