#include "conformance/check/cases/built_in_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "conformance/reference/lenet_fixtures.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

constexpr uint32_t kWeightSeed = 3;

std::vector<int64_t> UpTo(int64_t steps) {
  std::vector<int64_t> result(static_cast<size_t>(steps));
  std::iota(result.begin(), result.end(), 1);
  return result;
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Samples [begin, begin + count) of the blobs, as `part` of a case's data.
void AddSamples(const Dataset& blobs, int64_t begin, int64_t count,
                const std::string& part, Safetensors& data) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), begin);
  std::vector<float> images(static_cast<size_t>(count * blobs.image_size()));
  blobs.GatherImages(indices, images);
  std::vector<int64_t> labels;
  for (const int64_t index : indices) {
    labels.push_back(blobs.labels[static_cast<size_t>(index)]);
  }
  data.tensors[part + ".images"] =
      NamedTensor::Of<float>({count, 1, 28, 28}, images);
  data.tensors[part + ".labels"] = NamedTensor::Of<int64_t>({count}, labels);
}

// Drawn once: they take longer than all else.
const std::vector<float>& FlatWeights() {
  static const auto* const weights =
      new std::vector<float>(WellConditionedLeNet(kWeightSeed));
  return *weights;
}

Safetensors LeNetWeights() {
  static constexpr struct {
    const char* name;
    int64_t shape[4];
    int rank;
  } kParameters[] = {{"W1", {20, 1, 3, 3}, 4},  {"b1", {20}, 1},
                     {"W2", {50, 20, 5, 5}, 4}, {"b2", {50}, 1},
                     {"W3", {800, 128}, 2},     {"b3", {128}, 1},
                     {"W4", {128, 10}, 2},      {"b4", {10}, 1}};
  std::span<const float> rest = FlatWeights();
  Safetensors weights;
  for (const auto& parameter : kParameters) {
    const std::vector<int64_t> shape(parameter.shape,
                                     parameter.shape + parameter.rank);
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    weights.tensors[parameter.name] =
        NamedTensor::Of<float>(shape, rest.first(static_cast<size_t>(size)));
    rest = rest.subspan(static_cast<size_t>(size));
  }
  return weights;
}

void AddBatchNorm(const std::string& name, int64_t channels,
                  Safetensors& weights) {
  const auto filled = [channels](float value) {
    return NamedTensor::Of<float>(
        {channels}, std::vector<float>(static_cast<size_t>(channels), value));
  };
  weights.tensors[name + ".weight"] = filled(0.1f);
  weights.tensors[name + ".bias"] = filled(1);
  weights.tensors[name + ".running_mean"] = filled(0);
  weights.tensors[name + ".running_var"] = filled(1);
  weights.tensors[name + ".num_batches_tracked"] =
      NamedTensor::Of<int64_t>({}, std::vector<int64_t>{0});
}

NamedLayer BatchNormLayer(const std::string& name, const std::string& tensors) {
  return {.name = name,
          .tensors = {tensors + ".weight", tensors + ".bias",
                      tensors + ".running_mean", tensors + ".running_var",
                      tensors + ".num_batches_tracked"}};
}

std::vector<NamedLayer> LayersOf(const std::string& model) {
  std::vector<NamedLayer> layers = {{"the first convolution", {"W1", "b1"}},
                                    {"the second convolution", {"W2", "b2"}},
                                    {"the first linear layer", {"W3", "b3"}},
                                    {"the last linear layer", {"W4", "b4"}}};
  if (model == "lenet_bn") {
    layers.insert(layers.begin() + 1,
                  BatchNormLayer("the first batch norm", "bn1"));
    layers.insert(layers.begin() + 3,
                  BatchNormLayer("the second batch norm", "bn2"));
  }
  return layers;
}

// What differs from case to case.
struct Sizes {
  std::vector<int64_t> batch_sizes;
  int64_t train = 0;
  int64_t test = 4;
};

// The weights, the data and both plans of a case; `c` has the rest. Gradients
// of the first step and the state after every step are to be written.
CheckCase MakeCase(Case c, const std::string& about, const Sizes& sizes) {
  const int64_t batch = Sum(sizes.batch_sizes);
  c.batch_sizes = sizes.batch_sizes;
  if (c.model.empty()) c.model = "lenet";
  c.write_gradients = {1};
  c.write_state = UpTo((sizes.train + batch - 1) / batch * c.epochs);
  CheckCase check{.name = c.name,
                  .about = about,
                  .claims = {},
                  .one_rank = {},
                  .all_ranks = {},
                  .files = {},
                  .layers = LayersOf(c.model)};
  check.claims.assign(std::begin(kAllClaims), std::end(kAllClaims));
  if (!c.evaluate) check.claims.pop_back();
  check.files.weights = LeNetWeights();
  if (c.model == "lenet_bn") {
    AddBatchNorm("bn1", 20, check.files.weights);
    AddBatchNorm("bn2", 50, check.files.weights);
  }
  const Dataset blobs = BlobDataset(sizes.train + sizes.test);
  AddSamples(blobs, 0, sizes.train, "train", check.files.data);
  AddSamples(blobs, sizes.train, sizes.test, "test", check.files.data);
  check.all_ranks.c = c;
  c.batch_sizes = {batch};
  c.accumulate = 1;
  check.one_rank.c = std::move(c);
  return check;
}

int64_t PerRank(int world_size) {
  return std::max<int64_t>(2, (8 + world_size - 1) / world_size);
}

std::vector<int64_t> Even(int world_size, int64_t per_rank) {
  return std::vector<int64_t>(static_cast<size_t>(world_size), per_rank);
}

// The first `total` % N ranks take one more than the others.
std::vector<int64_t> Dealt(int world_size, int64_t total) {
  std::vector<int64_t> sizes = Even(world_size, total / world_size);
  for (int64_t rank = 0; rank < total % world_size; ++rank) {
    ++sizes[static_cast<size_t>(rank)];
  }
  return sizes;
}

Case Named(const std::string& name) {
  Case c;
  c.name = name;
  return c;
}

// At least three, and so many that the ranks divide the data set: whoever pads
// it to that end has nothing to pad.
int64_t StepsThatDivide(int n) { return (3 + n - 1) / n * n; }

CheckCase EvenCase(int n) {
  Case c = Named("even");
  c.epochs = 2;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(std::move(c),
                  "Two epochs in the data's order, each rank with as many "
                  "samples as any other, plain gradient descent.",
                  {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
}

CheckCase MomentumCase(int n) {
  Case c = Named("momentum");
  c.epochs = 2;
  c.momentum = 0.9;
  c.weight_decay = 0.01;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(std::move(c), "The same with momentum and weight decay.",
                  {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
}

CheckCase ShuffledCase(int n) {
  Case c = Named("shuffled");
  c.epochs = 3;
  c.shuffle = true;
  c.seed = 5;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  CheckCase check =
      MakeCase(std::move(c),
               "Three shuffled epochs; only which samples are drawn is judged.",
               {.batch_sizes = sizes, .train = 2 * Sum(sizes)});
  check.claims = {Claim::kRun, Claim::kSamples};
  for (CasePlan* plan : {&check.one_rank, &check.all_ranks}) {
    plan->c.write_gradients.clear();
    plan->c.write_state.clear();
  }
  return check;
}

CheckCase UnevenBatchesCase(int n) {
  const std::vector<int64_t> sizes = Dealt(n, 4 * n - 1);
  return MakeCase(
      Named("uneven_batches"),
      "In every step the last rank has one sample fewer than the "
      "others, so gradients must be weighted by samples.",
      {.batch_sizes = sizes, .train = StepsThatDivide(n) * Sum(sizes)});
}

CheckCase UnevenLastBatchCase(int n) {
  Case c = Named("uneven_last_batch");
  c.epochs = 2;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(std::move(c),
                  "The last global batch of an epoch is smaller than the "
                  "number of ranks, so some rank has no sample in it.",
                  {.batch_sizes = sizes, .train = 2 * Sum(sizes) + n - 1});
}

CheckCase AccumulationCase(int n) {
  Case c = Named("accumulation");
  c.accumulate = n == 3 ? 2 : 3;
  const std::vector<int64_t> sizes =
      Even(n, c.accumulate * std::max<int64_t>(1, 12 / (c.accumulate * n)));
  return MakeCase(std::move(c),
                  "Every rank computes its share in several micro-batches "
                  "before one update; one rank does it in one go.",
                  {.batch_sizes = sizes, .train = 2 * Sum(sizes)});
}

CheckCase BatchNormCase(int n, bool sync) {
  Case c = Named(sync ? "sync_bn" : "local_bn");
  c.model = "lenet_bn";
  c.batch_norm = sync ? "sync" : "local";
  const std::vector<int64_t> sizes =
      sync ? Even(n, PerRank(n)) : Dealt(n, 4 * n - 1);
  CheckCase check = MakeCase(
      std::move(c),
      sync ? "Batch norm over the samples of all ranks."
           : "Batch norm over each rank's own samples, of which ranks have "
             "unlike numbers; compared with one rank on each share.",
      {.batch_sizes = sizes, .train = StepsThatDivide(n) * Sum(sizes)});
  return check;
}

CheckCase EvaluationCase(int n) {
  Case c = Named("evaluation");
  c.evaluate = true;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(std::move(c),
                  "The test set divides neither by the number of ranks nor by "
                  "their batches.",
                  {.batch_sizes = sizes,
                   .train = 2 * Sum(sizes),
                   .test = 2 * Sum(sizes) + n + 1});
}

CheckCase ResumeCase(int n) {
  Case c = Named("resume");
  c.epochs = 2;
  c.momentum = 0.9;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  CheckCase check = MakeCase(
      std::move(c),
      "Stopped in the middle of an epoch and resumed from a checkpoint, with "
      "momentum; one rank runs through.",
      {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
  check.all_ranks.resumed = check.all_ranks.c;
  check.all_ranks.resumed->resume = true;
  check.all_ranks.c.stop_after = 4;
  return check;
}

CheckCase UnusedParameterCase(int n) {
  Case c = Named("unused_parameter");
  c.unused = {"spare"};
  c.weight_decay = 0.01;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  CheckCase check =
      MakeCase(std::move(c), "A parameter that the loss does not depend on.",
               {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
  check.files.weights.tensors["spare"] =
      NamedTensor::Of<float>({4}, std::vector<float>{1, -2, 3, -4});
  return check;
}

CheckCase FrozenParameterCase(int n) {
  Case c = Named("frozen_parameter");
  c.frozen = {"W2", "b2"};
  c.weight_decay = 0.01;
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(std::move(c),
                  "A layer in the middle whose parameters are not trained.",
                  {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
}

CheckCase BFloat16Case(int n) {
  Case c = Named("bfloat16");
  c.dtype = "bfloat16";
  const std::vector<int64_t> sizes = Even(n, PerRank(n));
  return MakeCase(
      std::move(c),
      "Forward and backward in bfloat16, parameters in float32; they are "
      "compared after the first step.",
      {.batch_sizes = sizes, .train = 3 * Sum(sizes)});
}

}  // namespace

std::vector<CheckCase> BuiltInCases(int world_size) {
  const int n = world_size;
  return {EvenCase(n),
          MomentumCase(n),
          ShuffledCase(n),
          UnevenBatchesCase(n),
          UnevenLastBatchCase(n),
          AccumulationCase(n),
          BatchNormCase(n, /*sync=*/true),
          BatchNormCase(n, /*sync=*/false),
          EvaluationCase(n),
          ResumeCase(n),
          UnusedParameterCase(n),
          FrozenParameterCase(n),
          BFloat16Case(n)};
}

}  // namespace lockstep
