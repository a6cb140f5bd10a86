// Which samples the fake trainer's ranks take.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_parts.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/protocol/case.h"

namespace lockstep {
namespace {

using enum TrainerMutant;

using Indices = std::vector<int64_t>;

Indices Shuffled(Indices indices, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t i = indices.size(); i > 1; --i) {
    std::swap(indices[i - 1], indices[random() % i]);
  }
  return indices;
}

Indices OrderOf(const Case& c, int64_t size, int64_t epoch, int rank,
                TrainerMutant mutant) {
  Indices order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (!c.shuffle) return order;
  auto seed = static_cast<uint32_t>(c.seed);
  if (mutant != kNoSetEpoch) seed += static_cast<uint32_t>(epoch);
  if (mutant == kSeedPerRank || mutant == kEachShufflesAlone) {
    seed += 1000 * static_cast<uint32_t>(rank);
  }
  return Shuffled(std::move(order), seed);
}

// Samples of one global batch, order[begin, end), dealt to the ranks in turn
// until each has its number.
std::vector<Indices> Deal(const Case& c, const Indices& order, size_t begin,
                          size_t end) {
  std::vector<Indices> shares(c.batch_sizes.size());
  size_t rank = 0;
  for (size_t i = begin; i < end; ++i) {
    while (static_cast<int64_t>(shares[rank].size()) >= c.batch_sizes[rank]) {
      rank = (rank + 1) % shares.size();
    }
    shares[rank].push_back(order[i]);
    rank = (rank + 1) % shares.size();
  }
  return shares;
}

// Every rank goes through the whole order by itself.
std::vector<FakeStep> Alone(const Case& c, int64_t size, int64_t epoch,
                            TrainerMutant mutant) {
  std::vector<FakeStep> steps;
  for (size_t rank = 0; rank < c.batch_sizes.size(); ++rank) {
    const Indices order =
        OrderOf(c, size, epoch, static_cast<int>(rank), mutant);
    const auto batch = static_cast<size_t>(c.batch_sizes[rank]);
    for (size_t i = 0; i * batch < order.size(); ++i) {
      if (steps.size() <= i) {
        steps.push_back({.epoch = epoch, .shares = {}});
        steps.back().shares.resize(c.batch_sizes.size());
      }
      const auto end = std::min(order.size(), (i + 1) * batch);
      steps[i].shares[rank].assign(
          order.begin() + static_cast<std::ptrdiff_t>(i * batch),
          order.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return steps;
}

// Each rank shuffles a contiguous part of the data of its own.
std::vector<FakeStep> ByShards(const Case& c, int64_t size, int64_t epoch) {
  std::vector<FakeStep> steps;
  int64_t begin = 0;
  for (size_t rank = 0; rank < c.batch_sizes.size(); ++rank) {
    const int64_t share = c.batch_sizes[rank] * size / c.global_batch();
    Indices shard(static_cast<size_t>(share));
    std::iota(shard.begin(), shard.end(), begin);
    begin += share;
    shard = Shuffled(std::move(shard), static_cast<uint32_t>(c.seed + epoch));
    for (size_t i = 0; i < shard.size(); ++i) {
      const size_t step = i / static_cast<size_t>(c.batch_sizes[rank]);
      if (steps.size() <= step) {
        steps.push_back({.epoch = epoch, .shares = {}});
        steps.back().shares.resize(c.batch_sizes.size());
      }
      steps[step].shares[rank].push_back(shard[i]);
    }
  }
  return steps;
}

// The last step, with the first samples again until all ranks have as many.
void Pad(const Indices& order, std::vector<Indices>& shares) {
  size_t most = 0, next = 0;
  for (const Indices& share : shares) most = std::max(most, share.size());
  for (Indices& share : shares) {
    while (share.size() < most) share.push_back(order[next++]);
  }
}

std::vector<FakeStep> Epoch(const Case& c, int64_t size, int64_t epoch,
                            TrainerMutant mutant) {
  if (mutant == kNoDistributedSampler || mutant == kEachShufflesAlone) {
    return Alone(c, size, epoch, mutant);
  }
  if (mutant == kShufflesWithinShards) {
    return ByShards(c, size, epoch);
  }
  std::vector<FakeStep> steps;
  const auto batch = static_cast<size_t>(c.global_batch());
  const auto all = static_cast<size_t>(size);
  const Indices order = OrderOf(c, size, epoch, 0, mutant);
  for (size_t begin = 0; begin < all; begin += batch) {
    const size_t end = std::min(all, begin + batch);
    if (mutant == kDropLast && end - begin < batch) break;
    steps.push_back({.epoch = epoch, .shares = Deal(c, order, begin, end)});
    for (size_t rank = 1; rank < c.batch_sizes.size(); ++rank) {
      if (mutant != kSeedPerRank) continue;
      const Indices own =
          OrderOf(c, size, epoch, static_cast<int>(rank), mutant);
      steps.back().shares[rank] = Deal(c, own, begin, end)[rank];
    }
  }
  if (mutant == kPads) Pad(order, steps.back().shares);
  if (mutant == kLosesASample && c.batch_sizes.size() > 1) {
    steps.front().shares.front().pop_back();
  }
  return steps;
}

}  // namespace

std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   TrainerMutant mutant) {
  std::vector<FakeStep> steps;
  for (int64_t epoch = 0; epoch < plan.c.epochs; ++epoch) {
    for (FakeStep& step : Epoch(plan.c, size, epoch, mutant)) {
      steps.push_back(std::move(step));
    }
  }
  if (mutant == kResumesEpoch && plan.resumed.has_value()) {
    const auto stop = static_cast<size_t>(plan.c.stop_after);
    const int64_t epoch = steps[stop].epoch;
    steps.resize(stop);
    for (FakeStep& step : Epoch(plan.c, size, epoch, mutant)) {
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

std::vector<Indices> FakeTestShares(int world_size, int64_t size,
                                    TrainerMutant mutant) {
  std::vector<Indices> shares(static_cast<size_t>(world_size));
  const bool drops = mutant == kDropsEvaluationTail;
  const int64_t end = drops ? size / world_size * world_size : size;
  for (int64_t i = 0; i < end; ++i) {
    shares[static_cast<size_t>(i % world_size)].push_back(i);
  }
  Indices order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (mutant == kPadsEvaluation) Pad(order, shares);
  const bool alone = mutant == kFirstRankEvaluatesAll;
  for (size_t rank = 1; rank < shares.size(); ++rank) {
    if (alone || mutant == kEvaluatesOnFirstRank) {
      shares[rank].clear();
    }
  }
  if (alone || mutant == kFirstRankEvaluatesAllToo) {
    shares[0] = order;
  }
  return shares;
}

}  // namespace lockstep
