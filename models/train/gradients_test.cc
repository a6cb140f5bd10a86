// Tests that a step gives the same results on any number of ranks, tests of its
// errors, and tests of the command.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/gradients_run.h"
#include "models/train/test_inputs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kImages = 6;

std::unique_ptr<Model> MakeModel(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Model>> model = CreateModel(name, /*seed=*/3);
  EXPECT_THAT(model, IsOk());
  return *std::move(model);
}

// Moves the outputs of batch norm, whose standard deviation is 1, away from
// zero by 4: downwards in every fourth channel, upwards in all others. If a
// ReLU's input is zero except for rounding, one order of additions lets a
// gradient through and another does not. That difference would hide every
// smaller fault.
void MoveAwayFromZero(Parameters& parameters) {
  for (int i = 0; i < parameters.count(); ++i) {
    const std::string& name = parameters.specs()[i].name;
    if (name != "bn1.bias" && name != "bn2.bias") continue;
    const std::span<float> bias = parameters.value(i);
    for (size_t channel = 0; channel < bias.size(); ++channel) {
      bias[channel] = channel % 4 == 0 ? -4.0f : 4.0f;
    }
  }
}

// Returns the same batch with its samples in another order: sample i is
// order[i].
Safetensors Reordered(const Safetensors& batch,
                      const std::vector<int64_t>& order) {
  Safetensors result = batch;
  for (auto& [name, tensor] : result.tensors) {
    const std::vector<std::byte>& from = batch.tensors.at(name).data;
    const size_t size = from.size() / order.size();
    for (size_t i = 0; i < order.size(); ++i) {
      std::memcpy(&tensor.data[i * size], &from[order[i] * size], size);
    }
  }
  return result;
}

NamedTensors Compute(const GradientsOptions& options,
                     const Safetensors& weights, const Safetensors& batch) {
  const absl::StatusOr<Safetensors> result =
      ComputeGradients(options, {"W", weights}, {"B", batch});
  EXPECT_THAT(result, IsOk());
  return result.ok() ? result->tensors : NamedTensors();
}

// Returns the Euclidean length of a - b, or of a.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = a.size() == b.size() ? 0 : NAN;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

double Norm(const std::vector<float>& a) {
  return Distance(a, std::vector<float>(a.size()));
}

// The bound of rounding for each tensor. Several ranks add the same numbers as
// one rank, but in another order. One rank that has the samples in another
// order does too. The largest distance among three such orders is a sample of
// the effect of an order, and ranks may differ by eight times as much. Sums too
// short to differ between the orders may still be rounded once per sample and
// rank.
class Rounding {
 public:
  Rounding(const GradientsOptions& one_rank, const Safetensors& weights,
           const Safetensors& batch)
      : want_(Compute(one_rank, weights, batch)) {
    std::vector<int64_t> order(kImages);
    std::iota(order.begin(), order.end(), 0);
    for (int i = 0; i < 3; ++i) {
      std::rotate(order.begin(), order.begin() + 1, order.end());
      std::swap(order[0], order[3]);
      const NamedTensors other =
          Compute(one_rank, weights, Reordered(batch, order));
      for (const auto& [name, tensor] : want_) {
        const std::vector<float> values = tensor.Values<float>();
        double& bound = bounds_[name];
        bound = std::max({bound,
                          8 * Distance(values, other.at(name).Values<float>()),
                          2 * kImages * 0x1p-24 * Norm(values)});
      }
    }
  }

  const NamedTensors& want() const { return want_; }

  // Returns the names of the tensors that differ from one rank's by more than
  // the bound. Counters must be equal.
  std::vector<std::string> Outside(const NamedTensors& got) const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : want_) {
      const NamedTensor& other = got.at(name);
      const bool same =
          tensor.type == DataType::kFloat32
              ? Distance(tensor.Values<float>(), other.Values<float>()) <=
                    bounds_.at(name)
              : tensor == other;
      if (!same) names.push_back(name);
    }
    return names;
  }

  // Returns the bound of all tensors together, relative to their norm.
  double RelativeBound() const {
    double bound = 0;
    double norm = 0;
    for (const auto& [name, tensor] : want_) {
      bound += bounds_.at(name) * bounds_.at(name);
      norm += std::pow(Norm(tensor.Values<float>()), 2);
    }
    return std::sqrt(bound / norm);
  }

 private:
  NamedTensors want_;
  std::map<std::string, double> bounds_;
};

// conformance/network compares the command's results for resnet18_d2l with a
// reference's.
class ModelTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, ModelTest,
                         testing::Values("lenet", "lenet_bn"),
                         [](const auto& info) { return info.param; });

// Four ranks have 2, 2, 2 and no images; of seven ranks the last has none.
TEST_P(ModelTest, AddsUpTheRanksOwnStepsAndRepeatsItselfBitForBit) {
  SetComputeThreads(1);
  const Safetensors weights = WeightsOf(*MakeModel(GetParam()));
  const Safetensors batch = RandomBatch(kImages);
  const std::vector<float> images = batch.tensors.at("images").Values<float>();
  const std::vector<int64_t> wide =
      batch.tensors.at("labels").Values<int64_t>();
  const std::vector<int32_t> labels(wide.begin(), wide.end());
  const int64_t pixels = std::ssize(images) / kImages;
  for (const int world_size : {1, 2, 4, 7}) {
    const GradientsOptions options = {.model = GetParam(),
                                      .world_size = world_size};
    const NamedTensors got = Compute(options, weights, batch);
    EXPECT_TRUE(Compute(options, weights, batch) == got);
    const int64_t block = (kImages + world_size - 1) / world_size;
    double loss_sum = 0;
    std::vector<double> sum, magnitude;  // Of all ranks' gradients.
    std::unique_ptr<Model> model;
    for (int64_t begin = (kImages - 1) / block * block; begin >= 0;
         begin -= block) {
      const int64_t size = std::min(block, kImages - begin);
      model = MakeModel(GetParam());
      const absl::StatusOr<Metrics> metrics = model->ForwardBackward(
          {std::span(images).subspan(begin * pixels, size * pixels),
           std::span(labels).subspan(begin, size)},
          1.0f / kImages, [](int) {});
      ASSERT_THAT(metrics, IsOk());
      loss_sum += metrics->loss_sum;
      const std::span<const float> gradients = model->parameters().gradients();
      sum.resize(gradients.size());
      magnitude.resize(gradients.size());
      for (size_t i = 0; i < gradients.size(); ++i) {
        sum[i] += gradients[i];
        magnitude[i] += std::abs(gradients[i]);
      }
    }
    // The model is now rank 0's, whose buffers count.
    const NamedTensors buffers = BufferTensors(model->buffers());
    for (const auto& [name, tensor] : buffers) {
      EXPECT_TRUE(got.at(name) == tensor) << name;
    }
    // Returns the parameters whose gradient is not the sum.
    const auto outside = [&](const NamedTensors& tensors) {
      std::vector<std::string> names;
      for (const ParameterSpec& spec : model->parameters().specs()) {
        const std::vector<float> values = tensors.at(spec.name).Values<float>();
        bool same = std::ssize(values) == spec.size;
        for (int64_t i = 0; same && i < spec.size; ++i) {
          const int64_t at = spec.offset + i;
          // The error of a sum of P numbers, in any order: |error| <= (P - 1) u
          // sum |x| (Jeannerod and Rump, 2013). One rank makes no addition.
          same = std::abs(values[i] - sum[at]) <=
                 (world_size - 1) * 0x1p-24 * magnitude[at];
        }
        if (!same) names.push_back(spec.name);
      }
      return names;
    };
    EXPECT_THAT(outside(got), testing::IsEmpty()) << world_size;
    // The control: a batch without one of the samples.
    EXPECT_THAT(
        outside(Compute(options, weights, RandomBatch(kImages - 1))),
        testing::SizeIs(testing::Ge(model->parameters().specs().size() / 2)));
    // The loss is rounded to float32 once, after float64 sums in the ranks'
    // order.
    const double loss = loss_sum / kImages;
    const NamedTensor& got_loss = got.at("loss");
    EXPECT_EQ(got_loss.shape, std::vector<int64_t>{1});
    if (world_size == 1) {
      EXPECT_EQ(got_loss.Values<float>().at(0), static_cast<float>(loss));
    }
    EXPECT_NEAR(got_loss.Values<float>().at(0), loss,
                (0x1p-24 + world_size * 0x1p-52) * loss);
    EXPECT_EQ(got.size(),
              model->parameters().specs().size() + buffers.size() + 1);
  }
}

TEST(SyncBatchNormTest, IsTheSameOverAnyNumberOfRanks) {
  const std::unique_ptr<Model> model = MakeModel("lenet_bn");
  MoveAwayFromZero(model->parameters());
  const Safetensors weights = WeightsOf(*model);
  const Safetensors batch = RandomBatch(kImages);
  GradientsOptions options = {.model = "lenet_bn", .sync_bn = true};
  const Rounding rounding(options, weights, batch);
  // If the bound were large, all results would be within it.
  EXPECT_LT(rounding.RelativeBound(), 1e-5);
  for (const int world_size : {2, 4, 7}) {
    options.world_size = world_size;
    const NamedTensors got = Compute(options, weights, batch);
    EXPECT_EQ(got.size(), rounding.want().size());
    EXPECT_THAT(rounding.Outside(got), testing::IsEmpty()) << world_size;
    EXPECT_TRUE(Compute(options, weights, batch) == got);
  }
  // The controls: a batch without one of the samples, and ranks with statistics
  // of their own.
  options.world_size = 2;
  EXPECT_THAT(
      rounding.Outside(Compute(options, weights, RandomBatch(kImages - 1))),
      testing::SizeIs(testing::Ge(model->parameters().count() / 2)));
  options.sync_bn = false;
  const auto outside = rounding.Outside(Compute(options, weights, batch));
  for (const char* name : {"W1", "loss", "bn1.running_mean"}) {
    EXPECT_THAT(outside, testing::Contains(name));
  }
}

// Images and labels that a model without batch norm takes, with faults added.
class BadInputTest : public testing::Test {
 protected:
  absl::Status StatusOf(const Safetensors& weights, const Safetensors& batch,
                        const GradientsOptions& options) {
    return ComputeGradients(options, {"W.st", weights}, {"B.st", batch})
        .status();
  }

  const std::unique_ptr<Model> model_ = MakeModel("lenet");
  const Safetensors weights_ = WeightsOf(*model_);
  const Safetensors batch_ = RandomBatch(3);
};

TEST_F(BadInputTest, NamesWhatIsWrongWithTheBatch) {
  struct Case {
    std::string message;
    Safetensors batch;
  };
  std::vector<Case> cases = {
      {"B.st: tensor 'images' holds no image", RandomBatch(0)}};
  const auto add = [&](const std::string& message) -> NamedTensors& {
    cases.push_back({message, batch_});
    return cases.back().batch.tensors;
  };
  add("B.st: has no tensor 'images'").erase("images");
  add("B.st: has no tensor 'labels'").erase("labels");
  add("B.st: tensor 'images' is int32, not float32")["images"].type =
      DataType::kInt32;
  NamedTensor& narrow =
      add("B.st: tensor 'labels' is int32, not int64")["labels"];
  narrow = {DataType::kInt32, {3}, std::vector<std::byte>(12)};
  add("B.st: tensor 'images' has the shape [3, 28, 28], not [n, c, h, w]")
      ["images"]
          .shape = {3, 28, 28};
  // Images of another size make another network.
  add("W.st: tensor 'W3' is float32 [800, 128], but the model's is float32 "
      "[550, 128]")["images"]
      .shape = {3, 1, 14, 56};
  add("B.st: tensor 'images' has the shape [3, 1, 0, 28]: images without "
      "values")["images"] = {DataType::kFloat32, {3, 1, 0, 28}, {}};
  add("--model=lenet: lenet: conv2: ")["images"] = {
      DataType::kFloat32, {3, 1, 4, 4}, std::vector<std::byte>(3 * 16 * 4)};
  add("B.st: tensor 'labels' has the shape [4], not [3] as the images")
      ["labels"] = {DataType::kInt64, {4}, std::vector<std::byte>(32)};
  add("B.st: tensor 'labels' has the shape [3, 1], not [3] as the images")
      ["labels"]
          .shape = {3, 1};
  for (const int label : {-1, 10}) {
    const int64_t value = label;
    NamedTensors& tensors =
        add("B.st: tensor 'labels' has " + std::to_string(label) +
            " at 2, which is not in [0, 10)");
    std::memcpy(&tensors["labels"].data[16], &value, sizeof(value));
  }
  for (const auto& [message, batch] : cases) {
    for (const int world_size : {1, 3}) {
      EXPECT_THAT(
          StatusOf(weights_, batch, {.world_size = world_size}),
          StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(message)));
    }
  }
}

TEST_F(BadInputTest, NamesTheWeightThatDoesNotFit) {
  Safetensors missing = weights_;
  missing.tensors.erase("b3");
  Safetensors wrong = weights_;
  wrong.tensors["b3"].shape = {64, 2};
  for (const int world_size : {1, 3}) {
    EXPECT_THAT(StatusOf(missing, batch_, {.world_size = world_size}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "W.st: has no tensor 'b3'"));
    EXPECT_THAT(StatusOf(wrong, batch_, {.world_size = world_size}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("W.st: tensor 'b3' is float32 [64, 2]")));
  }
  Safetensors no_buffer = WeightsOf(*MakeModel("lenet_bn"));
  no_buffer.tensors.erase("bn1.running_var");
  EXPECT_THAT(StatusOf(no_buffer, batch_, {.model = "lenet_bn"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "W.st: has no tensor 'bn1.running_var'"));
}

TEST_F(BadInputTest, NamesTheModelThatCannotBe) {
  EXPECT_THAT(
      StatusOf(weights_, batch_, {.model = "vgg"}),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          StartsWith(
              "--model=vgg: no such model; the models are lenet, lenet_bn, "
              "resnet18_d2l, ")));
  EXPECT_THAT(
      StatusOf(weights_, batch_, {.sync_bn = true}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no batch norm")));
}

// Steps in float64.

// Returns the float32 values of a tensor of either type of floats.
std::vector<float> Narrow(const NamedTensor& tensor) {
  if (tensor.type == DataType::kFloat32) return tensor.Values<float>();
  const std::vector<double> values = tensor.Values<double>();
  return {values.begin(), values.end()};
}

// Returns the largest |a - b| of any element; NaN if the tensors differ in
// size.
double LargestDifference(const NamedTensor& a, const NamedTensor& b) {
  const std::vector<double> x = a.Values<double>();
  const std::vector<double> y = b.Values<double>();
  if (x.empty() || x.size() != y.size()) return NAN;
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (!(difference <= largest)) largest = difference;  // A NaN stays.
  }
  return largest;
}

double LargestValue(const NamedTensors& tensors) {
  double largest = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.type != DataType::kFloat64) continue;
    for (const double value : tensor.Values<double>()) {
      largest = std::max(largest, std::abs(value));
    }
  }
  return largest;
}

// The allowed difference between several ranks and one rank, relative to the
// largest value of any tensor. Ranks add in another order. The order moves a
// sum of n terms by n 2^-53 of the terms' absolute sum, and later layers pass
// that on. No network here has sums of more than 2^14 terms; a factor of 2^10
// is left for cancellation and layers. The control shows that a wrong step
// differs by 10^5 times as much.
constexpr double kOrderInFloat64 = 0x1p-29;

TEST(Float64GradientsTest, RanksComputeWhatOneRankComputes) {
  const auto model = MakeModel("lenet_bn");
  MoveAwayFromZero(model->parameters());
  const Safetensors weights = WeightsOf(*model);
  const Safetensors batch = RandomBatch(kImages);
  const NamedTensors one = Compute(
      {.model = "lenet_bn", .dtype = DataType::kFloat64}, weights, batch);
  const double bound = kOrderInFloat64 * LargestValue(one);
  for (const int world_size : {2, 4, 7}) {  // Of seven, one has no image.
    const NamedTensors ranks = Compute({.model = "lenet_bn",
                                        .dtype = DataType::kFloat64,
                                        .world_size = world_size,
                                        .sync_bn = true},
                                       weights, batch);
    ASSERT_EQ(ranks.size(), one.size());
    for (const auto& [name, tensor] : one) {
      if (tensor.type == DataType::kInt64) {
        EXPECT_TRUE(ranks.at(name) == tensor) << name;
      } else {
        EXPECT_LE(LargestDifference(tensor, ranks.at(name)), bound)
            << name << " at " << world_size;
      }
    }
  }
  // The control: batch norm over each rank's own images gives other results.
  const NamedTensors local = Compute(
      {.model = "lenet_bn", .dtype = DataType::kFloat64, .world_size = 2},
      weights, batch);
  EXPECT_GT(LargestDifference(one.at("W2"), local.at("W2")), 1e5 * bound);
}

// A share of a gradient's norm. It is far above the float32 errors of these
// networks, some 1e-6, and far below the effect of other masks
// (MasksGoBySampleOnEveryRank).
constexpr double kNearFloat32 = 1e-4;

// In a step with masks, float32 is near float64 only if both draw the same
// masks.
TEST(Float64GradientsTest, AreNearThoseInFloat32) {
  for (const std::string spec :
       {"lenet_bn",
        "vit:depth=2,width=16,heads=2,dropout=0.25,drop_path=0.25"}) {
    const auto model = MakeModel(spec);
    MoveAwayFromZero(model->parameters());
    const Safetensors weights = WeightsOf(*model);
    const Safetensors batch = RandomBatch(kImages);
    const NamedTensors narrow = Compute({.model = spec}, weights, batch);
    const NamedTensors wide =
        Compute({.model = spec, .dtype = DataType::kFloat64}, weights, batch);
    ASSERT_EQ(narrow.size(), wide.size());
    double difference = 0, norm = 0;
    for (const auto& [name, tensor] : wide) {
      if (tensor.type == DataType::kInt64) continue;
      EXPECT_EQ(tensor.type, DataType::kFloat64) << name;
      EXPECT_EQ(tensor.shape, narrow.at(name).shape) << name;
      difference += std::pow(
          Distance(Narrow(tensor), narrow.at(name).Values<float>()), 2);
      norm += std::pow(Norm(Narrow(tensor)), 2);
    }
    // conformance/network derives bounds; this test tells types and masks
    // apart.
    EXPECT_LE(std::sqrt(difference / norm), kNearFloat32) << spec;
  }
}

// Samples keep their masks on every rank, even if a rank has no sample.
TEST(Float64GradientsTest, MasksGoBySampleOnEveryRank) {
  const std::string spec =
      "vit:depth=2,width=16,heads=2,dropout=0.25,attention_dropout=0.25,"
      "drop_path=0.25";
  const Safetensors weights = WeightsOf(*MakeModel(spec));
  const Safetensors batch = RandomBatch(kImages);
  GradientsOptions options = {.model = spec, .dtype = DataType::kFloat64};
  const NamedTensors one = Compute(options, weights, batch);
  const double bound = kOrderInFloat64 * LargestValue(one);
  for (const int world_size : {2, 4, 7}) {  // Of four and seven, one has none.
    options.world_size = world_size;
    const NamedTensors ranks = Compute(options, weights, batch);
    ASSERT_EQ(ranks.size(), one.size());
    for (const auto& [name, tensor] : one) {
      EXPECT_LE(LargestDifference(tensor, ranks.at(name)), bound)
          << name << " at " << world_size;
    }
  }
  // The control: at other positions the samples have other masks.
  std::vector<int64_t> order(kImages);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[0], order[3]);
  options.world_size = 1;
  const NamedTensors moved = Compute(options, weights, Reordered(batch, order));
  EXPECT_GT(LargestDifference(one.at("head.weight"), moved.at("head.weight")),
            100 * kNearFloat32 * LargestValue({{"", one.at("head.weight")}}));
}

// Weights in float64 are not rounded to float32 first.
TEST(Float64GradientsTest, TakesWeightsInFloat64) {
  const Safetensors weights = WeightsOf(*MakeModel("lenet"));
  const Safetensors batch = RandomBatch(3);
  const GradientsOptions options = {.dtype = DataType::kFloat64};
  Safetensors wide = weights;
  for (auto& [name, tensor] : wide.tensors) {
    const std::vector<float> values = tensor.Values<float>();
    const std::vector<double> doubles(values.begin(), values.end());
    tensor = NamedTensor::Of(tensor.shape, std::span<const double>(doubles));
  }
  const NamedTensors want = Compute(options, weights, batch);
  EXPECT_TRUE(Compute(options, wide, batch) == want);
  std::vector<double> nudged = wide.tensors["W4"].Values<double>();
  for (double& value : nudged) value *= 1 + 1e-12;
  wide.tensors["W4"] = NamedTensor::Of(wide.tensors["W4"].shape,
                                       std::span<const double>(nudged));
  EXPECT_FALSE(Compute(options, wide, batch) == want);
  EXPECT_THAT(ComputeGradients({}, {"W.st", wide}, {"B.st", batch}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("W.st: tensor 'W1' is float64 ")));
}

// The last stage of this network reduces an image of 32x32 to one pixel.
TEST(GradientsOfOneValueTest, AreRefusedInBothTypes) {
  const std::string spec = "resnet18:width=4";
  const auto network =
      CreateNetwork(spec, {.channels = 1, .height = 32, .width = 32});
  ASSERT_THAT(network, IsOk());
  Safetensors weights;
  weights.tensors = ValueTensors(CreateParameters(*network, /*seed=*/1));
  weights.tensors.merge(BufferTensors(CreateBuffers(*network)));
  const std::vector<float> images(32 * 32, 0.5f);
  const int64_t label = 3;
  Safetensors batch;
  batch.tensors["images"] =
      NamedTensor::Of({1, 1, 32, 32}, std::span<const float>(images));
  batch.tensors["labels"] = NamedTensor::Of({1}, std::span(&label, 1));
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
    EXPECT_THAT(ComputeGradients({.model = spec, .dtype = dtype},
                                 {"W", weights}, {"B", batch})
                    .status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("one value per channel")));
  }
}

// The command: files, flags, exit statuses.

constexpr int kDeadlineSeconds = 120;

class GradientsTest : public testing::Test {
 protected:
  GradientsTest() : root_(absl::StrCat(testing::TempDir(), "/gradients")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    Safetensors lenet = MakeWeights("lenet");
    lenet.metadata["model"] = "lenet";  // As in a checkpoint.
    Write("lenet", lenet);
    Write("batch", RandomBatch(3));
  }

  static Safetensors MakeWeights(const std::string& model) {
    return WeightsOf(*MakeModel(model));
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(root_, "/", name);
  }

  void Write(const std::string& name, const Safetensors& content) {
    ASSERT_THAT(WriteSafetensors(Path(name), content), IsOk());
  }

  // Runs the command from the folder with the files, as `bazel run` does.
  CommandOutcome Run(const std::string& flags) const {
    return RunCommand(absl::StrCat("env BUILD_WORKING_DIRECTORY=", root_,
                                   " models/train/gradients ", flags),
                      kDeadlineSeconds);
  }

  // Runs the command with flags with which it succeeds, and with `flags`.
  CommandOutcome RunWith(const std::string& flags) const {
    return Run(absl::StrCat("--weights=lenet --batch=batch --out=out ", flags));
  }

  void ExpectError(const std::string& flags, const std::string& message) {
    const CommandOutcome outcome = RunWith(flags);
    EXPECT_EQ(outcome.exit_status, 1) << flags;
    EXPECT_THAT(outcome.output, StartsWith("gradients: " + message));
    EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1)
        << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
  }

  const std::string root_;
};

TEST_F(GradientsTest, WritesWhatTheLibraryComputes) {
  Write("lenet_bn", MakeWeights("lenet_bn"));
  Write("resnet18_d2l", MakeWeights("resnet18_d2l"));
  struct Case {
    std::string flags;
    GradientsOptions options;
  };
  const std::vector<Case> cases = {
      {"", {}},
      {"--nproc=2", {.world_size = 2}},
      {"--nproc=2 --dtype=float64 --num_classes=10 --image_size=28 "
       "--in_channels=1",
       {.dtype = DataType::kFloat64, .world_size = 2}},
      {"--world_size=5 --model=lenet --nosync_bn", {.world_size = 5}},
      {"--model=lenet_bn --weights=lenet_bn", {.model = "lenet_bn"}},
      {"--model=resnet18_d2l --weights=resnet18_d2l --nproc=2 --sync_bn",
       {.model = "resnet18_d2l", .world_size = 2, .sync_bn = true}},
      {"--model=lenet_bn --weights=lenet_bn --nproc=2 --sync_bn=false",
       {.model = "lenet_bn", .world_size = 2}}};
  for (const auto& [flags, options] : cases) {
    std::filesystem::remove(Path("out"));
    const CommandOutcome outcome = RunWith(flags);
    EXPECT_EQ(outcome.exit_status, 0) << flags;
    EXPECT_EQ(outcome.output, "") << flags;
    const absl::StatusOr<Safetensors> weights =
        ReadSafetensors(Path(options.model));
    const absl::StatusOr<Safetensors> got = ReadSafetensors(Path("out"));
    ASSERT_THAT(weights, IsOk());
    ASSERT_THAT(got, IsOk());
    EXPECT_TRUE(got->tensors == Compute(options, *weights, RandomBatch(3)))
        << flags;
    EXPECT_TRUE(got->metadata.empty());
    EXPECT_EQ(got->tensors.size(), weights->tensors.size() + 1);
    EXPECT_EQ(got->tensors.at("loss").type, options.dtype);
    EXPECT_EQ(got->tensors.at("loss").shape, std::vector<int64_t>{1});
    for (const auto& [name, tensor] : weights->tensors) {
      ASSERT_TRUE(got->tensors.contains(name)) << name;
      EXPECT_EQ(got->tensors.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(got->tensors.at(name).type,
                tensor.type == DataType::kInt64 ? tensor.type : options.dtype)
          << name;
    }
  }
}

TEST_F(GradientsTest, TakesAbsolutePaths) {
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("models/train/gradients --weights=", Path("lenet"),
                   " --batch=", Path("batch"), " --out=", Path("absolute"),
                   " --nproc=2"),
      kDeadlineSeconds);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(Path("absolute")));
}

TEST_F(GradientsTest, ExplainsItselfAndNamesAWrongFlag) {
  ExpectUsage(Run("--help"), "gradients");
  for (const std::string flags :
       {"--nproc=0", "--nproc=65", "--nproc=two", "--model=vgg",
        "--threads_per_rank=0", "--timeout_s=0", "--sync_bn",
        "--weights=", "--batch=", "--out=", "--no_such_flag", "--dtype=int8",
        "--image_size=0x0", "--in_channels=-1", "--num_classes=-1", "stray"}) {
    ExpectUsageError(RunWith(flags), "gradients", flags,
                     flags.substr(0, flags.find('=')));
  }
  ExpectUsageError(RunWith("--nproc=2 --world_size=2"), "gradients", "both",
                   "--nproc and --world_size are one flag");
  for (const char* missing : {"weights", "batch", "out"}) {
    std::string flags;
    for (const std::string flag : {"weights", "batch", "out"}) {
      if (flag != missing) absl::StrAppend(&flags, "--", flag, "=lenet ");
    }
    ExpectUsageError(Run(flags), "gradients", flags,
                     absl::StrCat("--", missing, "="));
  }
  const std::pair<const char*, const char*> unfit[] = {
      {"--num_classes=7", "lenet has 10 classes\n"},
      {"--in_channels=3", "batch has 1 channels\n"},
      {"--image_size=224", "batch has images of 28x28\n"},
      {"--model=vit:patch=5",
       "patches of 5x5 do not divide images of 28x28\n"}};
  for (const auto& [flag, message] : unfit) {
    const CommandOutcome outcome = RunWith(flag);
    ExpectUsageError(outcome, "gradients", flag,
                     std::string(flag).substr(0, std::string(flag).find('=')));
    EXPECT_THAT(outcome.output, testing::EndsWith(message));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(GradientsTest, NamesTheFileThatDoesNotFit) {
  std::ofstream(Path("text")) << "this is no safetensors file";
  ExpectError("--weights=none", Path("none"));
  ExpectError("--batch=none", Path("none"));
  ExpectError("--weights=text", Path("text"));
  ExpectError("--batch=text", Path("text"));
  ExpectError("--out=none/out", Path("none/out"));
  // The command checks --out before it reads any file.
  ExpectError("--out=none/out --weights=none", Path("none/out"));
  std::filesystem::create_directory(Path("folder"));
  ExpectError("--out=folder --batch=none", Path("folder") + ": cannot replace");
  ExpectError("--weights=batch --nproc=3",
              Path("batch") + ": has no tensor 'W1'");
  ExpectError("--batch=lenet", Path("lenet") + ": has no tensor 'images'");
  ExpectError("--model=resnet18_d2l",
              Path("lenet") + ": has no tensor '0.bias'");
  Safetensors bad = RandomBatch(3);
  bad.tensors.at("labels").data[16] = std::byte{10};
  Write("bad", bad);
  ExpectError("--batch=bad --nproc=2",
              Path("bad") + ": tensor 'labels' has 10 at 2");
}

// Sanitizers need more address space than any limit that could be set.
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && \
    !defined(ABSL_HAVE_THREAD_SANITIZER)

// At these limits neither the weights nor oneDNN's code for them fit in memory.
TEST_F(GradientsTest, SaysThatMemoryIsShort) {
  Write("resnet18_d2l", MakeWeights("resnet18_d2l"));
  for (const int mebibytes : {100, 150, 200, 250}) {
    const CommandOutcome outcome = RunCommand(
        absl::StrCat(
            "sh -c 'ulimit -v ", mebibytes << 10,
            "; exec models/train/gradients --model=resnet18_d2l --weights=",
            Path("resnet18_d2l"), " --batch=", Path("batch"),
            " --out=", Path("out"), "'"),
        kDeadlineSeconds);
    EXPECT_EQ(outcome.exit_status, 1) << mebibytes;
    EXPECT_THAT(outcome.output, StartsWith("gradients: "));
    EXPECT_THAT(outcome.output, HasSubstr("memory"));
    EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1)
        << outcome.output;
  }
}

#endif

}  // namespace
}  // namespace lockstep
