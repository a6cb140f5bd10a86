// The life of a rank that the command `allreduce` measures.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_WORKER_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_WORKER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/all_reduce_subject.h"
#include "benchmarks/all_reduce_turn.h"

namespace lockstep {

// What a rank says of itself when it connects.
struct RankHello {
  int32_t rank = 0;
  int32_t world_size = 0;
};

std::string Serialize(const RankHello& hello);
std::string Serialize(const TurnRequest& request);
// Errors: kDataLoss.
absl::StatusOr<RankHello> ParseHello(absl::string_view bytes);
absl::StatusOr<TurnRequest> ParseRequest(absl::string_view bytes);

// Connects to the driver's listener, says who it is, and takes turns until the
// driver closes the connection: then it returns OK. Between turns it sleeps in
// the kernel. Error: that of connecting, or of the turn that failed, which the
// driver has been told.
absl::Status ServeTurns(const std::string& listener, AllReduceSubject& subject);

// The same for what takes turns in another way.
absl::Status ServeTurns(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<TurnResult>(const TurnRequest&)>& take);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_WORKER_H_
