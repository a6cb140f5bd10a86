#include "conformance/check/judge/fake_parts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <valarray>
#include <vector>

#include "base/data_types.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

constexpr size_t kInputs = 4, kHidden = 6, kClasses = 3;

using Rows = std::vector<FakeValues>;  // By sample.

Rows Linear(const Rows& x, const FakeValues& weight, const FakeValues& bias) {
  Rows out;
  for (const FakeValues& row : x) {
    FakeValues& y = out.emplace_back(bias);
    for (size_t i = 0; i < row.size(); ++i) {
      const FakeValues w = weight[std::slice(i * y.size(), y.size(), 1)];
      y += row[i] * w;
    }
  }
  return out;
}

// Takes the gradient of x W + b and returns the gradient of x.
Rows LinearBackward(const Rows& x, const FakeValues& weight, const Rows& d,
                    FakeValues& d_weight, FakeValues& d_bias) {
  d_weight.resize(weight.size());
  d_bias.resize(d[0].size());
  Rows dx;
  for (size_t n = 0; n < x.size(); ++n) {
    d_bias += d[n];
    FakeValues& row = dx.emplace_back(x[n].size());
    for (size_t i = 0; i < row.size(); ++i) {
      const std::slice of_input(i * d_bias.size(), d_bias.size(), 1);
      d_weight[of_input] += FakeValues(x[n][i] * d[n]);
      row[i] = (FakeValues(weight[of_input]) * d[n]).sum();
    }
  }
  return dx;
}

// Normalises in place and keeps the values that backward needs.
struct BatchNorm {
  FakeValues mean, variance, inverse;  // The variance is biased.
  Rows normalised;

  void Forward(const FakeTensors& weights, bool training, Rows& z) {
    constexpr float kEpsilon = 1e-5f;
    const auto count = static_cast<float>(z.size());
    mean.resize(kHidden);
    variance.resize(kHidden);
    for (const FakeValues& row : z) mean += row / count;
    for (const FakeValues& row : z) {
      variance += (row - mean) * (row - mean) / count;
    }
    if (!training) {
      mean = weights.at("bn.running_mean");
      variance = weights.at("bn.running_var");
    }
    inverse = 1.0f / std::sqrt(variance + kEpsilon);
    for (FakeValues& row : z) {
      normalised.push_back((row - mean) * inverse);
      row = weights.at("bn.weight") * normalised.back() + weights.at("bn.bias");
    }
  }

  // Turns the gradient of the output into the gradient of the input. The sums
  // are those of consecutive parts with these sizes.
  void Backward(const FakeTensors& weights, const std::vector<size_t>& sizes,
                Rows& d, FakeTensors& gradients) const {
    gradients["bn.bias"].resize(kHidden);
    gradients["bn.weight"].resize(kHidden);
    size_t begin = 0;
    for (const size_t size : sizes) {
      const auto count = static_cast<float>(size);
      FakeValues sum(kHidden), product(kHidden);
      for (size_t n = begin; n < begin + size; ++n) {
        sum += d[n];
        product += d[n] * normalised[n];
      }
      for (size_t n = begin; n < begin + size; ++n) {
        d[n] = weights.at("bn.weight") * inverse *
               (d[n] - sum / count - normalised[n] * product / count);
      }
      gradients["bn.bias"] += sum;
      gradients["bn.weight"] += product;
      begin += size;
    }
  }
};

// Computes the losses and replaces the logits by their gradients.
void CrossEntropy(const FakeBatch& batch, Rows& logits, FakePass& pass) {
  for (size_t n = 0; n < logits.size(); ++n) {
    FakeValues& row = logits[n];
    const size_t label = batch.y[n];
    const float top = row.max();
    const FakeValues powers = std::exp(row - top);
    pass.right += row[label] == top;
    pass.losses.push_back(std::log(powers.sum()) + top - row[label]);
    row = powers / powers.sum();
    row[label] -= 1;
    row /= static_cast<float>(logits.size());
  }
}

}  // namespace

FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     const FakeIndices& indices) {
  const Values images = ToValues(files.data.tensors.at(part + ".images"));
  const Values labels = ToValues(files.data.tensors.at(part + ".labels"));
  FakeBatch batch;
  for (const int64_t index : indices) {
    const auto row = static_cast<size_t>(index);
    FakeValues& x = batch.x.emplace_back(kInputs);
    std::copy_n(&images[row * kInputs], kInputs, std::begin(x));
    batch.y.push_back(static_cast<size_t>(labels[row]));
  }
  return batch;
}

FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const Case& c, bool training,
                      const std::vector<size_t>& local_sizes) {
  const bool normalises = c.batch_norm != "none";
  const auto round = [&](FakeValues& values) {
    if (c.dtype != "bfloat16") return;
    for (float& value : values) value = ToFloat(ToBFloat16(value));
  };
  Rows hidden = Linear(batch.x, weights.at("W1"), weights.at("b1"));
  std::ranges::for_each(hidden, round);
  BatchNorm norm;
  if (normalises) norm.Forward(weights, training, hidden);
  for (FakeValues& row : hidden) {
    row = std::tanh(row);
    round(row);
  }
  Rows d = Linear(hidden, weights.at("W2"), weights.at("b2"));
  std::ranges::for_each(d, round);
  FakePass pass;
  CrossEntropy(batch, d, pass);
  FakeTensors& gradients = pass.gradients;
  d = LinearBackward(hidden, weights.at("W2"), d, gradients["W2"],
                     gradients["b2"]);
  for (size_t n = 0; n < d.size(); ++n) {
    d[n] *= 1.0f - hidden[n] * hidden[n];
    round(d[n]);
  }
  if (normalises) {
    const std::vector<size_t> whole = {d.size()};
    norm.Backward(weights, local_sizes.empty() ? whole : local_sizes, d,
                  gradients);
  }
  LinearBackward(batch.x, weights.at("W1"), d, gradients["W1"],
                 gradients["b1"]);
  for (auto& [name, values] : gradients) round(values);
  const auto count = static_cast<float>(batch.y.size());
  pass.mean = norm.mean;
  pass.variance = norm.variance * (count / std::max(1.0f, count - 1));
  return pass;
}

bool IsFakeBuffer(const std::string& name) {
  return name.starts_with("bn.running") || name.ends_with("tracked");
}

CheckCase WithFakeModel(CheckCase check) {
  std::mt19937 engine(11);
  const auto uniform = [&](float low, float high) {
    return low + (high - low) * static_cast<float>(engine() * 0x1p-32);
  };
  for (const std::string& part : {std::string("train"), std::string("test")}) {
    const int64_t size = SampleCount(check.files, part);
    std::vector<float> images;
    FakeIndices labels;
    for (int64_t n = 0; n < size; ++n) {
      labels.push_back(static_cast<int64_t>(engine() * 0x1p-32 * kClasses));
      for (size_t i = 0; i < kInputs; ++i) {
        images.push_back(uniform(-1, 1) + static_cast<float>(labels.back()));
      }
    }
    NamedTensors& data = check.files.data.tensors;
    data[part + ".images"] = NamedTensor::Of<float>({size, 1, 2, 2}, images);
    data[part + ".labels"] = NamedTensor::Of<int64_t>({size}, labels);
  }
  NamedTensors& weights = check.files.weights.tensors;
  weights.clear();
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       float low, float high) {
    std::vector<float> values(std::accumulate(shape.begin(), shape.end(),
                                              int64_t{1}, std::multiplies()));
    for (float& value : values) value = uniform(low, high);
    weights[name] = NamedTensor::Of<float>(std::move(shape), values);
  };
  add("W1", {kInputs, kHidden}, -1, 1);
  add("b1", {kHidden}, -0.5f, 0.5f);
  add("W2", {kHidden, kClasses}, -1, 1);
  add("b2", {kClasses}, -0.5f, 0.5f);
  check.layers = {{"the first layer", {"W1", "b1"}},
                  {"the last layer", {"W2", "b2"}}};
  if (check.all_ranks.c.batch_norm != "none") {
    add("bn.weight", {kHidden}, 0.5f, 1);
    add("bn.bias", {kHidden}, -0.5f, 0.5f);
    add("bn.running_mean", {kHidden}, 0, 0);
    add("bn.running_var", {kHidden}, 1, 1);
    weights["bn.num_batches_tracked"] =
        NamedTensor::Of<int64_t>({}, FakeIndices{0});
    check.layers.insert(check.layers.begin() + 1,
                        {"the batch norm",
                         {"bn.weight", "bn.bias", "bn.running_mean",
                          "bn.running_var", "bn.num_batches_tracked"}});
  }
  for (const std::string& name : check.all_ranks.c.unused) {
    add(name, {4}, 1, 2);
  }
  return check;
}

namespace {

FakeIndices Shuffled(FakeIndices indices, int64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (size_t i = indices.size(); i > 1; --i) {
    std::swap(indices[i - 1], indices[random() % i]);
  }
  return indices;
}

FakeIndices OrderOf(const Case& c, int64_t size, int64_t epoch, size_t rank,
                    const std::string& mutant) {
  if (!c.shuffle) return Range(0, size);
  int64_t seed = c.seed;
  if (mutant != "no_set_epoch") seed += epoch;
  if (mutant == "seed_per_rank" || mutant == "each_shuffles_alone") {
    seed += 1000 * static_cast<int64_t>(rank);
  }
  return Shuffled(Range(0, size), seed);
}

// Deals the samples order[begin, end) of one global batch to the ranks in turn,
// until each rank has its number.
std::vector<FakeIndices> Deal(const Case& c, const FakeIndices& order,
                              size_t begin, size_t end) {
  std::vector<FakeIndices> shares(c.batch_sizes.size());
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

// Returns one order of samples per rank, for mutants whose ranks each follow
// their own order: of all the data, or of a contiguous part. Returns none for
// other mutants.
std::vector<FakeIndices> OwnOrders(const Case& c, int64_t size, int64_t epoch,
                                   const std::string& mutant) {
  std::vector<FakeIndices> orders;
  int64_t begin = 0;
  for (size_t rank = 0; rank < c.batch_sizes.size(); ++rank) {
    if (mutant == "no_distributed_sampler" || mutant == "each_shuffles_alone") {
      orders.push_back(OrderOf(c, size, epoch, rank, mutant));
    } else if (mutant == "shuffles_within_shards") {
      const int64_t part = c.batch_sizes[rank] * size / c.global_batch();
      orders.push_back(Shuffled(Range(begin, part), c.seed + epoch));
      begin += part;
    }
  }
  return orders;
}

// Pads the last step: repeats the first samples until all ranks have equally
// many.
void Pad(const FakeIndices& order, std::vector<FakeIndices>& shares) {
  size_t most = 0, next = 0;
  for (const FakeIndices& share : shares) most = std::max(most, share.size());
  for (FakeIndices& share : shares) {
    while (share.size() < most) share.push_back(order[next++]);
  }
}

void AddEpoch(const Case& c, int64_t size, int64_t epoch,
              const std::string& mutant, std::vector<FakeStep>& steps) {
  const size_t before = steps.size(), ranks = c.batch_sizes.size();
  const std::vector<FakeIndices> own = OwnOrders(c, size, epoch, mutant);
  for (size_t rank = 0; rank < own.size(); ++rank) {
    for (size_t i = 0; i < own[rank].size(); ++i) {
      const size_t step = before + i / static_cast<size_t>(c.batch_sizes[rank]);
      if (step == steps.size()) {
        steps.push_back({epoch, std::vector<FakeIndices>(ranks)});
      }
      steps[step].shares[rank].push_back(own[rank][i]);
    }
  }
  if (!own.empty()) return;
  const auto batch = static_cast<size_t>(c.global_batch());
  const FakeIndices order = OrderOf(c, size, epoch, 0, mutant);
  for (size_t begin = 0; begin < order.size(); begin += batch) {
    const size_t end = std::min(order.size(), begin + batch);
    if (mutant == "drop_last" && end - begin < batch) break;
    steps.push_back({epoch, Deal(c, order, begin, end)});
    for (size_t rank = 1; mutant == "seed_per_rank" && rank < ranks; ++rank) {
      steps.back().shares[rank] =
          Deal(c, OrderOf(c, size, epoch, rank, mutant), begin, end)[rank];
    }
  }
  if (mutant == "padded") Pad(order, steps.back().shares);
  if (mutant == "loses_a_sample" && ranks > 1) {
    steps[before].shares[0].pop_back();
  }
}

}  // namespace

std::vector<FakeStep> FakeSchedule(const CasePlan& plan, int64_t size,
                                   const std::string& mutant) {
  std::vector<FakeStep> steps;
  for (int64_t epoch = 0; epoch < plan.c.epochs; ++epoch) {
    AddEpoch(plan.c, size, epoch, mutant, steps);
  }
  if (!plan.resumed.has_value()) return steps;
  const auto stop = static_cast<std::ptrdiff_t>(plan.c.stop_after);
  if (mutant == "resume_repeats_batch") {
    const FakeStep last = steps[stop - 1];
    steps.insert(steps.begin() + stop, last);
  }
  if (mutant == "resume_skips_batch") steps.erase(steps.begin() + stop);
  if (mutant == "resume_begins_epoch") {
    const int64_t epoch = steps[stop].epoch;
    steps.resize(stop);
    AddEpoch(plan.c, size, epoch, mutant, steps);
  }
  return steps;
}

std::vector<FakeIndices> FakeTestShares(size_t world_size, int64_t size,
                                        const std::string& mutant) {
  const FakeIndices all = Range(0, size);
  std::vector<FakeIndices> shares(world_size);
  size_t end = all.size();
  if (mutant == "evaluation_tail_dropped") end -= end % world_size;
  for (size_t i = 0; i < end; ++i) shares[i % world_size].push_back(all[i]);
  if (mutant == "evaluation_padded") Pad(all, shares);
  const bool alone = mutant == "first_rank_evaluates_all";
  if (alone || mutant == "evaluates_on_first_rank") {
    std::fill(shares.begin() + 1, shares.end(), FakeIndices());
  }
  if (alone || mutant == "first_rank_evaluates_all_too") shares[0] = all;
  return shares;
}

}  // namespace lockstep::conformance
