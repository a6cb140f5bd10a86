#include "benchmarks/sampler/measure.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

absl::Status AddDraw(const DrawResult& result, MeasuredDraws& draws) {
  if (!draws.seconds.empty() &&
      (result.count != draws.count || result.checksum != draws.checksum)) {
    return absl::DataLossError(
        absl::StrCat(Name(draws.subject),
                     ": the same epoch, drawn again, has other indices"));
  }
  draws.seconds.push_back(result.seconds);
  draws.count = result.count;
  draws.checksum = result.checksum;
  return absl::OkStatus();
}

const MeasuredDraws* Find(const MeasuredEpoch& measured, DrawSubject subject) {
  for (const MeasuredDraws& draws : measured.draws) {
    if (draws.subject == subject && !draws.seconds.empty()) return &draws;
  }
  return nullptr;
}

absl::Status CompareWithPyTorch(const MeasuredEpoch& measured) {
  const MeasuredDraws* const ours = Find(measured, DrawSubject::kTorch);
  const MeasuredDraws* const theirs = Find(measured, DrawSubject::kPyTorch);
  if (ours == nullptr || theirs == nullptr ||
      (ours->count == theirs->count && ours->checksum == theirs->checksum)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("torch: of ", measured.size, " samples it draws ",
                   ours->count, " indices with CRC-32 ", ours->checksum,
                   ", PyTorch ", theirs->count, " with ", theirs->checksum));
}

}  // namespace

absl::StatusOr<MeasuredEpoch> MeasureEpoch(const SamplerSettings& settings,
                                           int64_t size,
                                           const DrawFunction& draw,
                                           const ClockFunction& elapsed,
                                           std::vector<DrawSubject>& subjects,
                                           std::string& missing) {
  MeasuredEpoch measured = {.size = size};
  for (const DrawSubject subject : subjects) {
    measured.draws.push_back({.subject = subject});
  }
  bool peer_failed = false;
  const auto take_turn = [&](int, size_t next) -> absl::Status {
    MeasuredDraws& draws = measured.draws[next];
    const bool peer = draws.subject == DrawSubject::kPyTorch;
    if (peer && peer_failed) return absl::OkStatus();
    const absl::StatusOr<DrawResult> result = draw(draws.subject, size);
    if (result.ok()) {
      LOCKSTEP_RETURN_IF_ERROR(AddDraw(*result, draws));
      return CompareWithPyTorch(measured);
    }
    if (!peer) return Named(Name(draws.subject), result.status());
    missing = absl::StrCat(
        "at ", size, " samples: ", std::string(result.status().message()));
    peer_failed = true;
    return absl::OkStatus();
  };
  const RoundLimits limits = {.rounds = settings.rounds,
                              .fewest = 2,
                              .most = 15,
                              .seconds = settings.seconds - elapsed()};
  LOCKSTEP_RETURN_IF_ERROR(
      MeasureRounds(limits, subjects.size(), elapsed, take_turn).status());
  if (peer_failed) {
    std::erase(subjects, DrawSubject::kPyTorch);
    std::erase_if(measured.draws, [](const MeasuredDraws& draws) {
      return draws.subject == DrawSubject::kPyTorch;
    });
  }
  return measured;
}

}  // namespace lockstep::benchmarks
