// Rounds of draws.
#include "benchmarks/sampler/measure.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kFewestRounds = 2;
constexpr int kMostRounds = 15;

// The number of rounds so far, the longest of them, and the time.
bool IsDone(const SamplerSettings& settings, int rounds, double longest,
            double now) {
  if (settings.rounds > 0) return rounds >= settings.rounds;
  if (rounds < kFewestRounds) return false;
  return rounds >= kMostRounds || now + longest > settings.seconds;
}

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
                                           const ElapsedFunction& elapsed,
                                           std::vector<DrawSubject>& subjects,
                                           std::string& missing) {
  MeasuredEpoch measured = {.size = size};
  for (const DrawSubject subject : subjects) {
    measured.draws.push_back({.subject = subject});
  }
  double longest = 0;
  for (int round = 0; !IsDone(settings, round, longest, elapsed()); ++round) {
    const double start = elapsed();
    bool peer_failed = false;
    for (size_t i = 0; i < measured.draws.size(); ++i) {
      MeasuredDraws& draws =
          measured
              .draws[(static_cast<size_t>(round) + i) % measured.draws.size()];
      const absl::StatusOr<DrawResult> result = draw(draws.subject, size);
      if (result.ok()) {
        LOCKSTEP_RETURN_IF_ERROR(AddDraw(*result, draws));
      } else if (draws.subject == DrawSubject::kPyTorch) {
        missing = absl::StrCat(
            "at ", size, " samples: ", std::string(result.status().message()));
        peer_failed = true;
      } else {
        return absl::Status(
            result.status().code(),
            absl::StrCat(Name(draws.subject), ": ", result.status().message()));
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(CompareWithPyTorch(measured));
    if (peer_failed) {
      std::erase(subjects, DrawSubject::kPyTorch);
      std::erase_if(measured.draws, [](const MeasuredDraws& draws) {
        return draws.subject == DrawSubject::kPyTorch;
      });
    }
    longest = std::max(longest, elapsed() - start);
  }
  return measured;
}

}  // namespace lockstep::benchmarks
