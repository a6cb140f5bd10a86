// Permutes a case's rows within each global batch.
#include "conformance/check/shadows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conformance/check/case_files.h"
#include "conformance/check/check_case.h"
#include "conformance/check/verdict.h"

namespace lockstep {
namespace {

enum class Order { kReversed, kRotated };

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

std::vector<Shadow> ShadowsOf(const CheckCase& check) {
  const Case& c = check.one_rank.c;
  if (c.shuffle || !ComparesNumbers(check)) return {};
  const int64_t batch =
      std::accumulate(c.batch_sizes.begin(), c.batch_sizes.end(), int64_t{0});
  const int64_t test = SampleCount(check.files, "test");
  std::vector<Shadow> shadows;
  for (const Order order : {Order::kReversed, Order::kRotated}) {
    CaseFiles files =
        WithSamples(check.files, "train",
                    Permuted(SampleCount(check.files, "train"), batch, order));
    files = WithSamples(files, "test",
                        Permuted(test, std::max<int64_t>(test, 1), order));
    shadows.push_back({.plan = check.one_rank, .files = std::move(files)});
  }
  return shadows;
}

}  // namespace lockstep
