// Turns as messages.
#include "benchmarks/all_reduce_worker.h"

#include <cstring>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "benchmarks/rank_service.h"

namespace lockstep {

std::string Serialize(const TurnRequest& request) {
  return std::string(reinterpret_cast<const char*>(&request), sizeof(request));
}

absl::StatusOr<TurnRequest> ParseRequest(absl::string_view bytes) {
  TurnRequest request;
  if (bytes.size() != sizeof(request)) {
    return absl::DataLossError("a message of another size than expected");
  }
  std::memcpy(&request, bytes.data(), sizeof(request));
  return request;
}

absl::Status ServeTurns(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<TurnResult>(const TurnRequest&)>& take) {
  return ServeMessages(
      listener, hello,
      [&](absl::string_view message) -> absl::StatusOr<std::string> {
        LOCKSTEP_ASSIGN_OR_RETURN(const TurnRequest request,
                                  ParseRequest(message));
        LOCKSTEP_ASSIGN_OR_RETURN(const TurnResult result, take(request));
        return Serialize(result);
      });
}

absl::Status ServeTurns(const std::string& listener,
                        AllReduceSubject& subject) {
  TurnTaker taker(subject);
  return ServeTurns(
      listener, {subject.rank(), subject.world_size()},
      [&](const TurnRequest& request) { return taker.Take(request); });
}

}  // namespace lockstep
