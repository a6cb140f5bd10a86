// Implements shuffles, padding, dealing and resuming by their definitions.
#include "conformance/sampling/sampling_reference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {
namespace {

std::vector<int64_t> InOrder(int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Shuffles as torch.randperm: forwards, with each place from the remainder of a
// draw.
std::vector<int64_t> TorchShuffled(int64_t n, int64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<int64_t> order = InOrder(n);
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + generator() % (order.size() - i)]);
  }
  return order;
}

// Shuffles as numpy's RandomState(seed).shuffle: backwards. Each place comes
// from as many bits as it needs, and is drawn again while it is too large.
std::vector<int64_t> NumpyShuffled(std::vector<int64_t> values, int64_t seed) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  for (size_t last = values.size(); last-- > 1;) {
    size_t mask = 1;
    while (mask < last) mask = 2 * mask + 1;
    size_t place;
    do {
      place = generator() & mask;
    } while (place > last);
    std::swap(values[place], values[last]);
  }
  return values;
}

// Returns the order without repeated entries.
std::vector<int64_t> EachOnce(const std::vector<int64_t>& order) {
  std::vector<int64_t> once;
  for (const int64_t sample : order) {
    if (std::find(once.begin(), once.end(), sample) == once.end()) {
      once.push_back(sample);
    }
  }
  return once;
}

}  // namespace

int64_t PaddingOf(const SamplingCase& c) {
  if (c.drop_tail || c.semantics == Semantics::kExact) return 0;
  const int64_t beyond = c.dataset_size % c.world_size;
  return beyond == 0 ? 0 : c.world_size - beyond;
}

int64_t LengthOf(const SamplingCase& c, int rank) {
  const int64_t whole = (c.dataset_size + PaddingOf(c)) / c.world_size;
  const bool longer =
      c.semantics == Semantics::kExact && rank < c.dataset_size % c.world_size;
  return whole + (longer ? 1 : 0);
}

int64_t StepsOf(const SamplingCase& c) {
  const int64_t most = LengthOf(c, 0);
  const int64_t fewest = LengthOf(c, c.world_size - 1);
  return c.drop_last ? fewest / c.batch_size
                     : (most + c.batch_size - 1) / c.batch_size;
}

std::vector<int64_t> ReferenceOrder(const SamplingCase& c, int64_t epoch) {
  if (c.semantics == Semantics::kPaddle) {
    const std::vector<int64_t> padded = PadOrCut(c, InOrder(c.dataset_size));
    return c.shuffle == Shuffle::kNone ? padded : NumpyShuffled(padded, epoch);
  }
  return c.shuffle == Shuffle::kNone
             ? InOrder(c.dataset_size)
             : TorchShuffled(c.dataset_size, c.seed + epoch);
}

std::vector<int64_t> PadOrCut(const SamplingCase& c,
                              const std::vector<int64_t>& order) {
  if (c.semantics == Semantics::kExact || order.empty()) return order;
  const auto ranks = static_cast<size_t>(c.world_size);
  size_t size = order.size() / ranks * ranks;
  if (!c.drop_tail && size < order.size()) size += ranks;
  std::vector<int64_t> dealt(size);
  for (size_t i = 0; i < size; ++i) dealt[i] = order[i % order.size()];
  return dealt;
}

Lists Deal(const SamplingCase& c, const std::vector<int64_t>& order) {
  const auto ranks = static_cast<size_t>(c.world_size);
  Lists lists(ranks);
  if (c.semantics != Semantics::kPaddle) {
    for (size_t i = 0; i < order.size(); ++i) {
      lists[i % ranks].push_back(order[i]);
    }
    return lists;
  }
  const auto batch = static_cast<size_t>(c.batch_size);
  for (size_t at = 0; at < order.size();) {
    const size_t part = std::min(batch, (order.size() - at) / ranks);
    for (std::vector<int64_t>& list : lists) {
      for (size_t i = 0; i < part; ++i) list.push_back(order[at++]);
    }
  }
  return lists;
}

std::vector<Batches> Cut(const SamplingCase& c, const Lists& lists) {
  const auto batch = static_cast<size_t>(c.batch_size);
  size_t steps = 0;
  if (c.drop_last) {
    // The last rank has the fewest samples.
    steps = lists.back().size() / batch;
  } else {
    steps = (lists.front().size() + batch - 1) / batch;
  }
  std::vector<Batches> ranks;
  for (const std::vector<int64_t>& list : lists) {
    Batches& batches = ranks.emplace_back();
    for (size_t step = 0; step < steps; ++step) {
      const size_t begin = std::min(list.size(), step * batch);
      const size_t end = std::min(list.size(), begin + batch);
      batches.emplace_back(list.begin() + static_cast<ptrdiff_t>(begin),
                           list.begin() + static_cast<ptrdiff_t>(end));
    }
  }
  return ranks;
}

EpochPosition::EpochPosition(const SamplingCase& c, int64_t epoch,
                             const std::vector<int64_t>& order)
    : case_(c),
      epoch_(epoch),
      order_(EachOnce(order)),
      dealt_(Deal(c, PadOrCut(c, order))) {}

std::vector<Batches> EpochPosition::RemainingBatches() const {
  Lists rest = dealt_;
  for (std::vector<int64_t>& list : rest) {
    list.erase(
        list.begin(),
        list.begin() + std::min<ptrdiff_t>(std::ssize(list),
                                           static_cast<ptrdiff_t>(visited_)));
  }
  return Cut(case_, rest);
}

EpochPosition EpochPosition::After(int64_t steps) const {
  EpochPosition after = *this;
  after.visited_ = std::min<int64_t>(visited_ + steps * case_.batch_size,
                                     std::ssize(dealt_.front()));
  return after;
}

bool EpochPosition::IsContinuedBy(const SamplingCase& c) const {
  return c.world_size == case_.world_size &&
         (c.semantics != Semantics::kPaddle ||
          c.batch_size == case_.batch_size);
}

EpochPosition EpochPosition::TakenOverBy(const SamplingCase& c) const {
  if (IsContinuedBy(c)) {
    EpochPosition same = *this;
    same.case_ = c;
    return same;
  }
  const std::vector<int64_t> left = Unvisited();
  if (std::ssize(left) == c.dataset_size && c.semantics == Semantics::kPaddle) {
    return EpochPosition(c, epoch_, ReferenceOrder(c, epoch_));
  }
  return EpochPosition(c, epoch_, left);
}

std::vector<int64_t> EpochPosition::Unvisited() const {
  std::vector<int64_t> left = order_;
  for (const std::vector<int64_t>& list : dealt_) {
    const size_t end = std::min(list.size(), static_cast<size_t>(visited_));
    for (size_t i = 0; i < end; ++i) {
      left.erase(std::remove(left.begin(), left.end(), list[i]), left.end());
    }
  }
  return left;
}

}  // namespace lockstep::conformance
