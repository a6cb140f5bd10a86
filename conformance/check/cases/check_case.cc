#include "conformance/check/cases/check_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "conformance/check/cases/tensors.h"
#include "conformance/protocol/case.h"

namespace lockstep {
namespace {

enum class Order { kReversed, kRotated };

// [0, size) with every block of `block` indices in another order.
std::vector<int64_t> Permuted(int64_t size, int64_t block, Order order) {
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  for (int64_t begin = 0; begin < size; begin += block) {
    const int64_t end = std::min(size, begin + block);
    const auto first = indices.begin() + begin, last = indices.begin() + end;
    if (order == Order::kReversed) {
      std::reverse(first, last);
    } else {
      std::rotate(first, first + (end - begin) / 2, last);
    }
  }
  return indices;
}

bool ComparesNumbers(const CheckCase& check) {
  return std::any_of(check.claims.begin(), check.claims.end(), [](Claim claim) {
    return claim == Claim::kGradients || claim == Claim::kLoss ||
           claim == Claim::kState || claim == Claim::kEvaluation;
  });
}

}  // namespace

const char* ClaimName(Claim claim) {
  switch (claim) {
    case Claim::kRun:
      return "run";
    case Claim::kSamples:
      return "samples";
    case Claim::kRanksAgree:
      return "ranks_agree";
    case Claim::kGradients:
      return "gradients";
    case Claim::kLoss:
      return "loss";
    case Claim::kState:
      return "state";
    case Claim::kEvaluation:
      break;
  }
  return "evaluation";
}

std::vector<ExtraStart> ReorderedStarts(const CheckCase& check) {
  const Case& c = check.one_rank.c;
  if (c.shuffle || !ComparesNumbers(check)) return {};
  const int64_t train = SampleCount(check.files, "train");
  const int64_t test = SampleCount(check.files, "test");
  std::vector<ExtraStart> starts;
  for (const Order order : {Order::kReversed, Order::kRotated}) {
    CaseFiles files = WithSamples(check.files, "train",
                                  Permuted(train, c.global_batch(), order));
    files = WithSamples(files, "test",
                        Permuted(test, std::max<int64_t>(test, 1), order));
    starts.push_back({.plan = check.one_rank, .files = std::move(files)});
  }
  return starts;
}

}  // namespace lockstep
