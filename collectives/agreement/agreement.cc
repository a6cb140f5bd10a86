#include "collectives/agreement/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

std::string SeenBy(const Witness& witness) {
  if (witness.number == 0 && !witness.with_partner) {
    return absl::StrCat(" (seen by rank ", witness.rank,
                        ", joining the group)");
  }
  return absl::StrCat(" (seen by rank ", witness.rank,
                      witness.with_partner ? " after call " : " in call ",
                      witness.number, ", ", ToString(witness.call), ")");
}

}  // namespace

absl::Status DisagreeOnCall(uint64_t number, int rank, const Call& call,
                            int other_rank, const Call& other) {
  return CallsDiffer(absl::StrCat("ranks disagree on call ", number), rank,
                     call, other_rank, other);
}

GoneRank FindGone(std::span<const RankFacts> facts, int own,
                  bool with_partner) {
  for (size_t i = 0; i < facts.size(); ++i) {
    const int rank = static_cast<int>(i);
    const RankFacts& fact = facts[i];
    if (rank == own) continue;
    const bool needed = fact.awaited || (!with_partner && !fact.reached);
    if (fact.left && needed) return {rank, /*left=*/true};
    if (fact.lost && !fact.left) return {rank, /*left=*/false};
  }
  return {};
}

int FindLate(std::span<const RankFacts> facts, int own, int64_t patience_nanos,
             bool only_missing) {
  bool any_missing = false;
  for (size_t i = 0; i < facts.size(); ++i) {
    if (static_cast<int>(i) != own && !facts[i].reached) any_missing = true;
  }
  int late = -1;
  for (size_t i = 0; i < facts.size(); ++i) {
    const int rank = static_cast<int>(i);
    const RankFacts& fact = facts[i];
    if (rank == own || (fact.reached && (any_missing || only_missing))) {
      continue;
    }
    if (fact.awaited && fact.silent_nanos > patience_nanos) return rank;
    if (late < 0 || fact.silent_nanos > facts[late].silent_nanos) late = rank;
  }
  return late;
}

std::string RankName(int rank, int64_t pid, absl::string_view host) {
  if (pid == 0) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (pid ", pid, host.empty() ? "" : " on ",
                      host, ")");
}

absl::Status LeftError(absl::string_view name, const Witness& witness) {
  return absl::UnavailableError(
      absl::StrCat(name, " left the group", SeenBy(witness)));
}

absl::Status LostError(absl::string_view name, absl::string_view how,
                       const Witness& witness) {
  return absl::UnavailableError(absl::StrCat(name, " ", how, SeenBy(witness)));
}

absl::Status LateError(absl::string_view name, absl::Duration timeout,
                       absl::string_view obstacle, const Witness& witness) {
  return absl::DeadlineExceededError(absl::StrCat(name, " did not come within ",
                                                  absl::FormatDuration(timeout),
                                                  obstacle, SeenBy(witness)));
}

}  // namespace lockstep
