// Whole epochs, each drawn wrongly.
#include "conformance/sampling/wrong_draws.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

Batches RealEpoch(const SamplingCase& c, int rank, int64_t epoch) {
  const auto sampler = MakeTestedSampler(c, rank).value();
  sampler->SetEpoch(epoch);
  return DrawEpoch(*sampler).value();
}

// The order that one rank draws of so many samples.
std::vector<int64_t> RealOrder(SamplingCase c, int64_t epoch) {
  c.world_size = 1;
  c.batch_size = c.dataset_size;
  c.drop_last = false;
  return RealEpoch(c, 0, epoch)[0];
}

// What one rank draws from there on: no padding.
std::vector<int64_t> RealRest(SamplingCase c, const SamplerState& state) {
  c.world_size = 1;
  c.batch_size = c.dataset_size;
  const auto sampler = MakeTestedSampler(c, 0).value();
  if (!sampler->Restore(state).ok()) return {};
  const Batches batches = DrawEpoch(*sampler).value();
  return batches.empty() ? std::vector<int64_t>() : batches[0];
}

Batches DealPart(const SamplingCase& c, const std::vector<int64_t>& order,
                 int rank) {
  return Cut(c, Deal(c, order))[static_cast<size_t>(rank)];
}

// As many steps as the case has, the last of them partial or empty.
Batches CutOne(const SamplingCase& c, const std::vector<int64_t>& list) {
  Batches batches(static_cast<size_t>(StepsOf(c)));
  const auto batch = static_cast<size_t>(c.batch_size);
  for (size_t i = 0; i < std::min(list.size(), batches.size() * batch); ++i) {
    batches[i / batch].push_back(list[i]);
  }
  return batches;
}

}  // namespace

Batches PadFromTheEnd(const SamplingCase& c, int rank, int64_t epoch) {
  std::vector<int64_t> order = RealOrder(c, epoch);
  const size_t n = order.size();
  for (size_t i = 0; i < static_cast<size_t>(PaddingOf(c)); ++i) {
    order.push_back(order[n - 1 - i % n]);
  }
  return DealPart(c, order, rank);
}

Batches PadOnce(const SamplingCase& c, int rank, int64_t epoch) {
  std::vector<int64_t> order = RealOrder(c, epoch);
  const size_t n = order.size();
  const size_t padding = std::min(n, static_cast<size_t>(PaddingOf(c)));
  for (size_t i = 0; i < padding; ++i) order.push_back(order[i]);
  return DealPart(c, order, rank);
}

Batches PadFirst(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase padded = c;
  padded.dataset_size += PaddingOf(c);
  std::vector<int64_t> order = RealOrder(padded, epoch);
  for (int64_t& index : order) index %= c.dataset_size;
  return DealPart(c, order, rank);
}

Batches PadLast(const SamplingCase& c, int rank, int64_t epoch) {
  return DealPart(c, PadOrCut(c, RealOrder(c, epoch)), rank);
}

Batches StrideByBlocks(const SamplingCase& c, int rank, int64_t epoch) {
  const std::vector<int64_t> order = PadOrCut(c, RealOrder(c, epoch));
  int64_t begin = 0;
  for (int other = 0; other < rank; ++other) begin += LengthOf(c, other);
  return CutOne(
      c, {order.begin() + begin, order.begin() + begin + LengthOf(c, rank)});
}

Batches DealOneByOne(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase single = c;
  single.batch_size = 1;
  single.drop_last = false;
  std::vector<int64_t> list;
  for (const auto& batch : RealEpoch(single, rank, epoch)) {
    list.push_back(batch[0]);
  }
  return CutOne(c, list);
}

Batches GiveTheTailToTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  const std::vector<int64_t> order = ReferenceOrder(c, epoch);
  const int64_t whole = LengthOf(c, 0) / c.batch_size * c.batch_size;
  std::vector<int64_t> list = Deal(c, order)[static_cast<size_t>(rank)];
  list.resize(static_cast<size_t>(whole));
  if (rank == c.world_size - 1) {
    list.insert(list.end(), order.begin() + whole * c.world_size, order.end());
  }
  return CutOne(c, list);
}

Batches LoseTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == (c.dataset_size - 1) % c.world_size) batches.back().pop_back();
  return batches;
}

Batches DrawAnothersFirst(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == 1) batches[0][0] = RealEpoch(c, 0, epoch)[0][0];
  return batches;
}

Batches DrawTheFirstTwice(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  if (rank == 0) {
    (c.batch_size > 1 ? batches[0][1] : batches[1][0]) = batches[0][0];
  }
  return batches;
}

Batches LeaveTheLast(const SamplingCase& c, int rank, int64_t epoch) {
  SamplingCase shorter = c;
  --shorter.dataset_size;
  std::vector<int64_t> order = RealOrder(shorter, epoch);
  order.push_back(shorter.dataset_size);
  return DealPart(c, PadOrCut(c, order), rank);
}

Batches DrawTheNextIndex(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  for (std::vector<int64_t>& batch : batches) {
    for (int64_t& index : batch) ++index;
  }
  return batches;
}

Batches PartEarly(const SamplingCase& c, int rank, int64_t epoch) {
  Batches batches = RealEpoch(c, rank, epoch);
  while (!batches.empty() && batches.back().empty()) batches.pop_back();
  return batches;
}

Batches ReverseTheRest(const SamplingCase& c, int rank,
                       const SamplerState& state) {
  std::vector<int64_t> left = RealRest(c, state);
  std::reverse(left.begin(), left.end());
  return DealPart(c, PadOrCut(c, left), rank);
}

Batches PadTheRestTwice(const SamplingCase& c, int rank,
                        const SamplerState& state) {
  std::vector<int64_t> order = PadOrCut(c, RealRest(c, state));
  const size_t n = order.size();
  for (int more = 0; n > 0 && more < c.world_size; ++more) {
    order.push_back(order[static_cast<size_t>(more) % n]);
  }
  return DealPart(c, order, rank);
}

}  // namespace lockstep
