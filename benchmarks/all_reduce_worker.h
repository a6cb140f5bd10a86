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
#include "benchmarks/rank_service.h"

namespace lockstep {

std::string Serialize(const TurnRequest& request);
// Error: kDataLoss.
absl::StatusOr<TurnRequest> ParseRequest(absl::string_view bytes);

// ServeMessages with turns of `subject`.
absl::Status ServeTurns(const std::string& listener, AllReduceSubject& subject);

// The same for what takes turns in another way.
absl::Status ServeTurns(
    const std::string& listener, const RankHello& hello,
    const std::function<absl::StatusOr<TurnResult>(const TurnRequest&)>& take);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_WORKER_H_
