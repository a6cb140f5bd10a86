// Tests the generator of initial weights, networks by name, and their
// parameters and buffers. models/cpu/networks_on_cpu_test.cc tests how the
// networks behave; //models/reference compares their numbers with PyTorch's.
#include "models/networks/networks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/torch_generator.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Draw {
  uint64_t seed = 0;
  bool first = false;  // Drawn first after seeding.
  size_t size = 0;
  std::vector<double> ends;  // Half from the start, half from the end.
};

// Reads numbers that PyTorch drew; testdata/generate_goldens.py wrote them.
std::vector<Draw> ReadDraws() {
  std::ifstream file("models/networks/testdata/randn_golden.txt");
  std::vector<Draw> draws;
  uint64_t seed = 0;
  bool first = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "seed") {
      words >> seed;
      first = true;
    } else if (word == "draw") {
      Draw draw;
      draw.seed = seed;
      draw.first = first;
      first = false;
      words >> draw.size;
      // operator>> does not read hexadecimal floats.
      for (std::string number; words >> number;) {
        draw.ends.push_back(std::strtod(number.c_str(), nullptr));
      }
      draws.push_back(draw);
    }
  }
  return draws;
}

// PyTorch's float32 log, square root, sine, cosine and product are each within
// 2 ulp. Together the error is within 4 ulp of a radius below 8: 24-bit uniform
// numbers allow at most sqrt(-2 log(2^-24)) = 5.77. A number near zero has the
// same absolute error, because its angle was rounded on the scale of the
// radius.
constexpr double kTolerance = 4 * 0x1p-24 * 8;

// Returns the largest error of the ends, or NaN if one is NaN.
double WorstError(const Draw& want, std::span<const float> got) {
  double worst = 0;
  const size_t size = want.ends.size();
  for (size_t i = 0; i < size; ++i) {
    const float x = got[i < size / 2 ? i : got.size() - size + i];
    const double error = std::abs(x - want.ends[i]);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  return worst;
}

TEST(TorchGeneratorTest, DrawsWhatPyTorchDraws) {
  const std::vector<Draw> draws = ReadDraws();
  ASSERT_EQ(draws.size(), 36u);  // Three seeds.
  TorchGenerator normal(0);
  double worst = 0;
  for (const Draw& draw : draws) {
    SCOPED_TRACE(testing::Message()
                 << "seed " << draw.seed << " size " << draw.size);
    if (draw.first) normal = TorchGenerator(draw.seed);
    std::vector<float> out(draw.size, std::nanf(""));
    normal.FillNormal(out);
    ASSERT_LE(draw.ends.size(), 2 * out.size());
    const double error = WorstError(draw, out);
    EXPECT_TRUE(error <= kTolerance) << error;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_error", std::to_string(worst * 0x1p24) + " * 2^-24");
}

// The control: draws that are one number out of step, or of another seed,
// differ by more than 0.1.
TEST(TorchGeneratorTest, GoldenRejectsOtherDraws) {
  const Draw golden = ReadDraws().at(0);
  TorchGenerator other_seed(golden.seed + 1);
  std::vector<float> out(golden.size);
  other_seed.FillNormal(out);
  EXPECT_GT(WorstError(golden, out), 0.1);
  TorchGenerator same_seed(golden.seed);
  same_seed.FillNormal(out);
  std::ranges::rotate(out, out.begin() + 1);
  EXPECT_GT(WorstError(golden, out), 0.1);
}

// PyTorch 1.13 wrote these numbers: manual_seed(3), randn(1),
// empty(3).uniform_(-0.1, 0.7), randn(1), empty(2).uniform_(0, 1), randn(1).
TEST(TorchGeneratorTest, DrawsUniformNumbersAmongNormalOnes) {
  TorchGenerator generator(3);
  const auto normal = [&] {
    std::vector<float> out(1);
    generator.FillNormal(out);
    return out[0];
  };
  const auto uniform = [&](float low, float high, size_t size) {
    std::vector<float> out(size);
    generator.FillUniform(low, high, out);
    return out;
  };
  EXPECT_NEAR(normal(), 0x1.9b47p-1, kTolerance);
  EXPECT_THAT(uniform(-0.1f, 0.7f, 3),
              ElementsAre(0x1.1bf24ep-2f, -0x1.a938cep-5f, 0x1.08f4cep-1f));
  // The second number of the pair that the first normal draw began.
  EXPECT_NEAR(normal(), 0x1.660f0cp-3, kTolerance);
  EXPECT_THAT(uniform(0, 1, 2), ElementsAre(0x1.7cc62ap-1f, 0x1.3057fap-1f));
  EXPECT_NEAR(normal(), 0x1.9a68c8p-1, kTolerance);
}

TEST(TorchGeneratorTest, IgnoresTheSeedsHighBitsAndEmptyDraws) {
  std::vector<float> low(40), high(40);
  TorchGenerator(7).FillNormal(low);
  TorchGenerator same((uint64_t{9} << 32) + 7);
  same.FillNormal({});
  same.FillNormal(high);
  EXPECT_EQ(low, high);
}

struct GoldenWeights {
  std::string name;
  int64_t size = 0;
  double sum = 0;
  std::vector<double> ends;  // The first three numbers and the last three.
};

std::map<uint64_t, std::vector<GoldenWeights>> ReadGoldenWeights() {
  std::ifstream file("models/networks/testdata/resnet18_d2l_golden.txt");
  std::map<uint64_t, std::vector<GoldenWeights>> by_seed;
  uint64_t seed = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "seed") words >> seed;
    if (kind != "parameter") continue;
    GoldenWeights& weights = by_seed[seed].emplace_back();
    words >> weights.name >> weights.size;
    std::string number;
    words >> number;
    weights.sum = std::strtod(number.c_str(), nullptr);
    while (words >> number) {
      weights.ends.push_back(std::strtod(number.c_str(), nullptr));
    }
  }
  return by_seed;
}

// Returns the largest difference of the ends and of the sums per element, or
// NaN if there is one.
double WorstDifference(const GoldenWeights& golden,
                       std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += x;
  double worst =
      std::abs(sum - golden.sum) / static_cast<double>(values.size());
  for (size_t i = 0; i < golden.ends.size(); ++i) {
    const float x = i < 3 ? values[i] : values[values.size() - 6 + i];
    const double error = std::abs(x - golden.ends[i]);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  return worst;
}

// The bound of torch_generator.h on a normal number, times 0.01, plus the
// rounding of the product.
constexpr double kNormalDifference = 0.01 * 0x1p-19 + 0.06 * 0x1p-24;

TEST(FirstWeightsTest, AreThoseThatPyTorchDraws) {
  const auto goldens = ReadGoldenWeights();
  ASSERT_EQ(goldens.size(), 2u);
  for (const auto& [seed, golden] : goldens) {
    ASSERT_EQ(golden.size(), 76u);
    const Parameters parameters =
        CreateParameters(*CreateNetwork("resnet18_d2l"), seed);
    for (int i = 0; i < parameters.count(); ++i) {
      const ParameterSpec& spec = parameters.specs()[i];
      SCOPED_TRACE(spec.name);
      ASSERT_EQ(spec.name, golden[i].name);
      ASSERT_EQ(spec.size, golden[i].size);
      ASSERT_EQ(golden[i].ends.size(), 6u);
      // Biases and batch norm are exact, except for the sum in the script.
      const double tolerance = spec.shape.size() > 1 ? kNormalDifference : 0;
      const double difference = WorstDifference(golden[i], parameters.value(i));
      EXPECT_TRUE(difference <= tolerance + 0x1p-50) << difference;
    }
  }
}

// The controls: a generator that is one number out of step, and the weights of
// another layer.
TEST(FirstWeightsTest, GoldenRejectsOtherWeights) {
  const std::vector<GoldenWeights> golden = ReadGoldenWeights().at(0);
  const Parameters parameters =
      CreateParameters(*CreateNetwork("resnet18_d2l"), /*seed=*/0);
  const auto index_of = [&](const std::string& name) {
    return std::ranges::find(golden, name, &GoldenWeights::name) -
           golden.begin();
  };
  const auto value = [&](const char* name) {
    return parameters.value(static_cast<int>(index_of(name)));
  };
  const auto golden_of = [&](const char* name) {
    return golden[index_of(name)];
  };
  const char kFirst[] = "resnet_block1.0.conv2.weight";
  const char kBias[] = "resnet_block4.0.conv3.bias";
  EXPECT_TRUE(WorstDifference(golden_of(kFirst), value(kFirst)) <=
              kNormalDifference);
  std::vector<float> shifted(value(kFirst).begin() + 1, value(kFirst).end());
  shifted.push_back(value(kFirst)[0]);
  for (const auto& [name, other] :
       {std::pair<const char*, std::span<const float>>(kFirst, shifted),
        {kFirst, value("resnet_block1.1.conv2.weight")},
        {kBias, value("resnet_block4.0.conv2.bias")}}) {
    EXPECT_GT(WorstDifference(golden_of(name), other), 1e-3);
  }
}

TEST(CreateNetworkTest, NamesWhatIsWrongInOneLine) {
  const std::pair<const char*, const char*> faults[] = {
      {"", "no such model; the models are lenet, lenet_bn, resnet18_d2l, "},
      {"LeNet", "no such model"},
      {"resnet18_d2l ", "no such model"},
      {"lenet:width=3", "lenet: 'width' is not an option; it has none"},
      {"resnet18_d2l:depth=3",
       "resnet18_d2l: 'depth' is not an option; the options are width"},
      {"resnet18_d2l:width", "resnet18_d2l: 'width' is not key=value"},
      {"resnet18_d2l:width=0", "option width=0: must be an integer in [1, "},
      {"vit:width=64,width=65", "option 'width' is given twice"},
      {"vit:dropout=1", "option dropout=1: must be in [0, 1)"},
      {"vit:width=64,heads=3", "3 heads do not divide a width of 64"},
      {"vit:patch=5", "patches of 5x5 do not divide images of 28x28"},
      {"vit_tiny_patch16_224",
       "patches of 16x16 do not divide images of 28x28"},
  };
  for (const auto& [spec, fault] : faults) {
    const absl::Status status = CreateNetwork(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(status.message(), HasSubstr(fault)) << spec;
    EXPECT_THAT(status.message(), Not(HasSubstr("\n"))) << spec;
  }
  EXPECT_THAT(CreateNetwork("lenet", {.height = 4, .width = 4}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("conv2: a window of 5 with padding 0 does not "
                                 "fit an input of [20, 1, 1]")));
  EXPECT_FALSE(CreateNetwork("lenet", {.classes = 0}).ok());
}

TEST(CreateNetworkTest, FitsImagesAndClasses) {
  const NetworkInput input = {
      .channels = 3, .height = 64, .width = 96, .classes = 7};
  for (const char* spec :
       {"lenet", "lenet_bn", "resnet18_d2l", "resnet18", "resnet34", "resnet50",
        "mlp:depth=1", "vit:patch=8", "vit_tiny_patch16_224",
        "vit_small_patch16_224", "vit_base_patch16_224"}) {
    const auto network = CreateNetwork(spec, input);
    ASSERT_THAT(network, IsOk());
    EXPECT_EQ(network->input_shape(),
              (Shape{.n = 1, .c = 3, .h = 64, .w = 96}));
    EXPECT_EQ(network->output_shape(), (Shape{.n = 1, .c = 7}));
    const absl::StatusOr<bool> batch_norm = HasBatchNorm(spec);
    ASSERT_THAT(batch_norm, IsOk());
    EXPECT_EQ(*batch_norm, !network->buffers().empty()) << spec;
  }
}

// The parameter counts on torchvision's and timm's own pages.
TEST(NetworksTableTest, HasTheParametersOfTheSources) {
  const std::pair<const char*, const char*> wants[] = {
      {"resnet18", "11,689,512"},
      {"resnet34", "21,797,672"},
      {"resnet50", "25,557,032"},
      {"vit_tiny_patch16_224", "5,717,416"},
      {"vit_small_patch16_224", "22,050,664"},
      {"vit_base_patch16_224", "86,567,656"}};
  const std::string table = NetworksTable();
  for (const auto& [name, parameters] : wants) {
    const size_t row = table.find(absl::StrCat("| `", name, "` |"));
    ASSERT_NE(row, std::string::npos) << name;
    EXPECT_THAT(table.substr(row, table.find('\n', row) - row),
                HasSubstr(absl::StrCat("| 1000 | ", parameters, " |")));
  }
}

TEST(NetworksTableTest, StandsInTheReadme) {
  std::ifstream file("models/networks/README.md");
  const std::string readme((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  EXPECT_THAT(readme, HasSubstr(NetworksTable()))
      << "bazel run //models/networks:table prints:\n"
      << NetworksTable();
}

// Every network takes the images that benchmarks use for it.
TEST(ListedNetworksTest, FitTheImagesOfBenchmarks) {
  for (const NetworkEntry& entry : ListedNetworks()) {
    EXPECT_THAT(CreateNetwork(entry.name, entry.benchmark_input()), IsOk())
        << entry.name;
    EXPECT_GT(entry.benchmark_batch, 0);
  }
  EXPECT_FALSE(FindNetworkEntry("vgg").ok());
}

TEST(FlopsTest, AreThoseOfThePapers) {
  // Multiplications at 224x224: 1.8, 3.6 and 4.1 billion (He et al. 2015, table
  // 1; the last for the stride of v1.5), and 1.3 billion (DeiT-Ti, Touvron et
  // al. 2020).
  const std::pair<const char*, double> wants[] = {
      {"resnet18", 1.82},
      {"resnet34", 3.67},
      {"resnet50", 4.09},
      {"vit_tiny_patch16_224", 1.25}};
  for (const auto& [spec, want] : wants) {
    const auto network = CreateNetwork(
        spec, {.channels = 3, .height = 224, .width = 224, .classes = 1000});
    ASSERT_THAT(network, IsOk());
    EXPECT_NEAR(static_cast<double>(FlopsOf(*network)) / 2e9, want,
                0.01 * want);
  }
}

// Tests of the types in models/model.h.

Parameters Three() {
  return Parameters({{"W", {2, 3}}, {"s", {}}, {"b", {5}}});
}

TEST(ParametersTest, PlacesTensorsOneAfterTheOtherInAlignedZeros) {
  Parameters parameters = Three();
  ASSERT_EQ(parameters.count(), 3);
  const std::vector<ParameterSpec>& specs = parameters.specs();
  EXPECT_EQ(specs[0].name, "W");
  EXPECT_THAT(specs[0].shape, ElementsAre(2, 3));
  const std::pair<int64_t, int64_t> wants[] = {
      {0, 6}, {6, 1}, {7, 5}};  // A scalar has one element.
  for (int i = 0; i < 3; ++i) {
    const auto [offset, size] = wants[i];
    EXPECT_EQ(specs[i].offset, offset);
    EXPECT_EQ(specs[i].size, size);
    EXPECT_EQ(parameters.value(i).data(), parameters.values().data() + offset);
    EXPECT_EQ(parameters.gradient(i).data(),
              parameters.gradients().data() + offset);
    EXPECT_EQ(std::ssize(parameters.value(i)), size);
    EXPECT_EQ(std::ssize(parameters.gradient(i)), size);
  }
  for (const auto all : {parameters.values(), parameters.gradients()}) {
    EXPECT_THAT(std::vector<float>(all.begin(), all.end()),
                ElementsAreArray(std::vector<float>(12)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.data()) % 64, 0u);
  }
  std::ranges::fill(parameters.value(2), 3.0f);
  EXPECT_THAT(parameters.gradients(), Each(0.0f));
  EXPECT_THAT(parameters.values(),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3));
}

TEST(ParametersTest, SpansOutliveAMoveAndTensorsMayBeEmpty) {
  Parameters three = Three();
  const float* before = three.values().data();
  EXPECT_EQ(Parameters(std::move(three)).values().data(), before);
  EXPECT_THAT(Parameters({}).values(), IsEmpty());
  const Parameters parameters({{"empty", {3, 0}}, {"one", {1}}});
  EXPECT_THAT(parameters.value(0), IsEmpty());
  EXPECT_EQ(parameters.specs()[1].offset, 0);
}

TEST(BuffersTest, KeepsEachBufferApartInTheOrderTheyWereAdded) {
  Buffers buffers;
  const int mean = buffers.AddFloats("bn.running_mean", {2});
  const int batches = buffers.AddCounter("bn.num_batches_tracked");
  const int table = buffers.AddFloats("table", {1, 3});
  const int steps = buffers.AddCounter("steps");
  buffers.value(mean)[1] = 1;
  buffers.value(table)[2] = 2;
  buffers.counter(batches) = 3;
  buffers.counter(steps) = 4;
  EXPECT_THAT(buffers.floats(), ElementsAre(0, 1, 0, 0, 2));
  EXPECT_THAT(buffers.counters(), ElementsAre(3, 4));
  const Buffers copy = buffers;
  EXPECT_THAT(copy.value(mean), ElementsAre(0, 1));
  EXPECT_THAT(copy.value(table), ElementsAre(0, 0, 2));
  EXPECT_EQ(copy.counter(batches), 3);
  EXPECT_EQ(copy.counter(steps), 4);
  ASSERT_EQ(copy.count(), 4);
  const char* const names[] = {"bn.running_mean", "bn.num_batches_tracked",
                               "table", "steps"};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(copy.specs()[i].name, names[i]);
  EXPECT_EQ(copy.specs()[2].type, DataType::kFloat32);
  EXPECT_THAT(copy.specs()[2].shape, ElementsAre(1, 3));
  EXPECT_EQ(copy.specs()[2].size, 3);
  EXPECT_EQ(copy.specs()[3].type, DataType::kInt64);
  EXPECT_THAT(copy.specs()[3].shape, ElementsAre());
  EXPECT_EQ(copy.specs()[3].size, 1);
}

}  // namespace
}  // namespace lockstep
