#include "conformance/check/cases/built_in_cases.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/reference/lenet_reference.h"

namespace lockstep::conformance {
namespace {

constexpr uint32_t kWeightSeed = 3;

// Adds samples [begin, begin + count) of the blobs to `data`, as the part
// `part`.
void AddSamples(const MemoryDataset& blobs, int64_t begin, int64_t count,
                const std::string& part, Safetensors& data) {
  const std::vector<int64_t> indices = Range(begin, count);
  std::vector<float> images(count * blobs.image_size());
  blobs.GatherImages(indices, images);
  std::vector<int64_t> labels;
  for (const int64_t index : indices) labels.push_back(blobs.label(index));
  data.tensors[part + ".images"] =
      NamedTensor::Of<float>({count, 1, 28, 28}, images);
  data.tensors[part + ".labels"] = NamedTensor::Of<int64_t>({count}, labels);
}

// Returns the weights. They are drawn once, because drawing takes longer than
// everything else here.
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
        NamedTensor::Of<float>(shape, rest.first(size));
    rest = rest.subspan(size);
  }
  return weights;
}

void AddBatchNorm(const std::string& name, int64_t channels,
                  Safetensors& weights) {
  const auto filled = [channels](float value) {
    return NamedTensor::Of<float>({channels},
                                  std::vector<float>(channels, value));
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

// Returns a case of `train` samples with its weights, data and both plans; `c`
// has the other settings. The trainer writes the gradients of the first step
// and the state after every step.
CheckCase MakeCase(Case c, const std::string& about, int64_t train,
                   int64_t test = 4) {
  const int64_t batch = c.global_batch();
  if (c.model.empty()) c.model = "lenet";
  c.write_gradients = {1};
  c.write_state = Range(1, (train + batch - 1) / batch * c.epochs);
  CheckCase check{.name = c.name, .about = about, .layers = LayersOf(c.model)};
  check.claims.assign(std::begin(kAllClaims), std::end(kAllClaims));
  if (!c.evaluate) check.claims.pop_back();
  check.files.weights = LeNetWeights();
  if (c.model == "lenet_bn") {
    AddBatchNorm("bn1", 20, check.files.weights);
    AddBatchNorm("bn2", 50, check.files.weights);
  }
  const MemoryDataset blobs = BlobDataset(train + test);
  AddSamples(blobs, 0, train, "train", check.files.data);
  AddSamples(blobs, train, test, "test", check.files.data);
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
  return std::vector<int64_t>(world_size, per_rank);
}

// Deals out `total` samples: the first `total` % N ranks take one more than the
// others.
std::vector<int64_t> Dealt(int world_size, int64_t total) {
  std::vector<int64_t> sizes = Even(world_size, total / world_size);
  for (int64_t rank = 0; rank < total % world_size; ++rank) ++sizes[rank];
  return sizes;
}

// Returns a number of steps, at least three, that N divides. The ranks then
// divide the data set evenly, and a trainer that pads it has nothing to pad.
int64_t StepsDivisibleByRanks(int n) { return (3 + n - 1) / n * n; }

// Returns a case in which all ranks have equally many samples; an epoch has
// `steps` steps.
CheckCase EvenCase(int n, Case c, const std::string& about, int64_t steps = 3) {
  c.batch_sizes = Even(n, PerRank(n));
  const int64_t train = steps * c.global_batch();
  return MakeCase(std::move(c), about, train);
}

CheckCase ShuffledCase(int n) {
  CheckCase check =
      EvenCase(n, {.name = "shuffled", .epochs = 3, .shuffle = true, .seed = 5},
               "Three shuffled epochs; only which samples are drawn is judged.",
               /*steps=*/2);
  check.claims = {Claim::kRun, Claim::kSamples};
  for (CasePlan* plan : {&check.one_rank, &check.all_ranks}) {
    plan->c.write_gradients.clear();
    plan->c.write_state.clear();
  }
  return check;
}

CheckCase AccumulationCase(int n) {
  const int64_t accumulate = n == 3 ? 2 : 3;
  const int64_t per_rank =
      accumulate * std::max<int64_t>(1, 12 / (accumulate * n));
  return MakeCase({.name = "accumulation",
                   .batch_sizes = Even(n, per_rank),
                   .accumulate = accumulate},
                  "Every rank computes its share in several micro-batches "
                  "before one update; one rank does it in one go.",
                  2 * n * per_rank);
}

CheckCase EvaluationCase(int n) {
  const int64_t two_batches = 2 * n * PerRank(n);
  return MakeCase({.name = "evaluation",
                   .batch_sizes = Even(n, PerRank(n)),
                   .evaluate = true},
                  "The test set divides neither by the number of ranks nor by "
                  "their batches.",
                  two_batches, two_batches + n + 1);
}

CheckCase ResumeCase(int n) {
  CheckCase check = EvenCase(
      n, {.name = "resume", .momentum = 0.9, .epochs = 2},
      "Stopped in the middle of an epoch and resumed from a checkpoint, with "
      "momentum; one rank runs through.",
      /*steps=*/4);
  check.all_ranks.resumed = check.all_ranks.c;
  check.all_ranks.resumed->resume = true;
  check.all_ranks.c.stop_after = 6;
  return check;
}

CheckCase UnusedParameterCase(int n) {
  CheckCase check = EvenCase(
      n,
      {.name = "unused_parameter", .unused = {"spare"}, .weight_decay = 0.01},
      "A parameter that the loss does not depend on.");
  check.files.weights.tensors["spare"] =
      NamedTensor::Of<float>({4}, std::vector<float>{1, -2, 3, -4});
  return check;
}

}  // namespace

std::vector<CheckCase> BuiltInCases(int world_size) {
  const int n = world_size;
  return {
      EvenCase(n, {.name = "even", .epochs = 2},
               "Two epochs in the data's order, each rank with as many samples "
               "as any other, plain gradient descent."),
      EvenCase(n,
               {.name = "momentum",
                .momentum = 0.9,
                .weight_decay = 0.01,
                .epochs = 2},
               "The same with momentum and weight decay."),
      ShuffledCase(n),
      MakeCase({.name = "uneven_batches", .batch_sizes = Dealt(n, 4 * n - 1)},
               "In every step the last rank has one sample fewer than the "
               "others, so gradients must be weighted by samples.",
               StepsDivisibleByRanks(n) * (4 * n - 1)),
      MakeCase({.name = "uneven_last_batch",
                .batch_sizes = Even(n, PerRank(n)),
                .epochs = 2},
               "The last global batch of an epoch is smaller than the "
               "number of ranks, so some rank has no sample in it.",
               2 * n * PerRank(n) + n - 1),
      AccumulationCase(n),
      EvenCase(n,
               {.name = "sync_bn", .model = "lenet_bn", .batch_norm = "sync"},
               "Batch norm over the samples of all ranks.",
               StepsDivisibleByRanks(n)),
      MakeCase({.name = "local_bn",
                .model = "lenet_bn",
                .batch_norm = "local",
                .batch_sizes = Dealt(n, 4 * n - 1)},
               "Batch norm over each rank's own samples, of which ranks "
               "have unlike numbers; compared with one rank on each share.",
               StepsDivisibleByRanks(n) * (4 * n - 1)),
      EvaluationCase(n),
      ResumeCase(n),
      UnusedParameterCase(n),
      EvenCase(n,
               {.name = "frozen_parameter",
                .frozen = {"W2", "b2"},
                .weight_decay = 0.01},
               "A layer in the middle whose parameters are not trained."),
      EvenCase(n, {.name = "bfloat16", .dtype = "bfloat16"},
               "Forward and backward in bfloat16, parameters in float32; they "
               "are compared after the first step.")};
}

}  // namespace lockstep::conformance
