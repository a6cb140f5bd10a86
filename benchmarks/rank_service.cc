// Receive, answer.
#include "benchmarks/rank_service.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

}  // namespace

std::string Serialize(const RankHello& hello) { return BytesOf(hello); }

absl::StatusOr<RankHello> ParseHello(absl::string_view bytes) {
  RankHello hello;
  if (bytes.size() != sizeof(hello)) {
    return absl::DataLossError("a message of another size than expected");
  }
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  return hello;
}

std::string EncodeAnswer(const absl::StatusOr<std::string>& answer) {
  const std::string code =
      BytesOf(static_cast<int32_t>(answer.status().code()));
  return answer.ok() ? absl::StrCat(code, *answer)
                     : absl::StrCat(code, answer.status().message());
}

absl::StatusOr<std::string> DecodeAnswer(absl::string_view bytes) {
  int32_t code = 0;
  if (bytes.size() < sizeof(code)) {
    return absl::DataLossError("a rank's answer is cut short");
  }
  std::memcpy(&code, bytes.data(), sizeof(code));
  bytes.remove_prefix(sizeof(code));
  if (code == 0) return std::string(bytes);
  return absl::Status(static_cast<absl::StatusCode>(code), bytes);
}

absl::Status ServeMessages(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<std::string>(absl::string_view)>&
        answer) {
  LOCKSTEP_ASSIGN_OR_RETURN(TurnChannel driver, TurnChannel::Connect(listener));
  LOCKSTEP_RETURN_IF_ERROR(driver.Send(Serialize(hello)));
  while (true) {
    const absl::StatusOr<std::string> message =
        driver.Receive(absl::InfiniteFuture());
    if (!message.ok()) return absl::OkStatus();
    const absl::StatusOr<std::string> reply = answer(*message);
    LOCKSTEP_RETURN_IF_ERROR(driver.Send(EncodeAnswer(reply)));
    LOCKSTEP_RETURN_IF_ERROR(reply.status());
  }
}

}  // namespace lockstep
