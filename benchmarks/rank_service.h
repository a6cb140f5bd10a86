// How a rank that a benchmark has started serves its driver.
#ifndef LOCKSTEP_BENCHMARKS_RANK_SERVICE_H_
#define LOCKSTEP_BENCHMARKS_RANK_SERVICE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// What a rank says of itself when it connects.
struct RankHello {
  int32_t rank = 0;
  int32_t world_size = 0;
};

std::string Serialize(const RankHello& hello);
// Errors: kDataLoss.
absl::StatusOr<RankHello> ParseHello(absl::string_view bytes);

// An answer, or the error in its place, as one message, and back. Error of
// Decode: kDataLoss for bytes that are no answer; else the error that was
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

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_RANK_SERVICE_H_
