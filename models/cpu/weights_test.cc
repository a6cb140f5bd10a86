// Tests of weight conversions: the bytes equal those of oneDNN's own
// conversion, and a training step reads the plain weights of a layer once.
#include "models/cpu/weights.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

using dnnl::memory;
using onednn::Desc;
using tag = memory::format_tag;

using Bytes = std::vector<uint8_t>;

dnnl::engine Engine() { return {dnnl::engine::kind::cpu, 0}; }

// Returns values of many magnitudes, including ties of bfloat16 and infinity.
std::vector<float> Weights(const memory::dims& dims) {
  std::vector<float> weights(dims[0] * dims[1] * dims[2] * dims[3]);
  for (size_t j = 0; j < weights.size(); ++j) {
    const float odd = static_cast<float>(j * 2 + 1);
    weights[j] = (j % 3 == 0 ? -odd : odd) *
                 std::ldexp(1.0f, static_cast<int>(j % 50) - 25);
    if (j % 5 == 0) weights[j] = 1 + static_cast<float>(j % 512) * 0x1p-8f;
    if (j % 97 == 0) weights[j] = std::numeric_limits<float>::infinity();
  }
  return weights;
}

// Returns memory that is not zero, so that padding shows.
Bytes Space(const Desc& desc) { return Bytes(desc.get_size(), 0xff); }

Bytes Reordered(const std::vector<float>& weights, const Desc& plain,
                const Desc& to) {
  const dnnl::engine engine = Engine();
  dnnl::stream stream(engine);
  Bytes bytes = Space(to);
  Reorder(engine, plain, to).Run(stream, weights.data(), bytes.data());
  return bytes;
}

Desc Plain(const memory::dims& dims) {
  return {dims, memory::data_type::f32, tag::oihw};
}

// Returns both formats by a WeightConversion.
std::pair<Bytes, Bytes> Converted(const std::vector<float>& weights,
                                  const Desc& plain, const Desc& forward,
                                  const Desc& data, bool* reads_plain_once) {
  const dnnl::engine engine = Engine();
  dnnl::stream stream(engine);
  WeightConversion conversion(engine, plain, forward, data);
  *reads_plain_once = conversion.reads_plain_once();
  std::pair<Bytes, Bytes> bytes = {Space(forward), Space(data)};
  EXPECT_EQ(conversion.Run(stream, weights.data(), bytes.first.data(),
                           bytes.second.data()),
            bytes.first.data());
  return bytes;
}

struct Formats {
  const char* name;
  tag forward, data;
};

const Formats kFormats[] = {
    {"16i16o and 16o16i", tag::OIhw16i16o, tag::OIhw16o16i},
    {"16i16o and IO 16o16i", tag::OIhw16i16o, tag::IOhw16o16i},
    {"8i8o and 8o8i", tag::OIhw8i8o, tag::OIhw8o8i},
    {"8i16o2i and 8o16i2o", tag::OIhw8i16o2i, tag::OIhw8o16i2o},
    {"8i16o2i and IO 8o16i2o", tag::OIhw8i16o2i, tag::IOhw8o16i2o},
    {"16i16o2i and 16o16i2o", tag::OIhw16i16o2i, tag::OIhw16o16i2o},
    {"blocks of two sizes", tag::OIhw16i16o, tag::OIhw8o8i},
    {"blocks of outputs alone", tag::Ohwi64o, tag::OIhw16o16i},
    {"16i32o2i and 16o16i2o", tag::OhwI16i32o2i, tag::OIhw16o16i2o},
    {"larger than the buffer", tag::OhwI16i64o2i, tag::OIhw16o16i2o},
    {"one without blocks", tag::hwio, tag::OIhw16i16o},
};

TEST(WeightConversionTest, WritesTheBytesOfOnednn) {
  for (const auto type : {memory::data_type::f32, memory::data_type::bf16}) {
    for (const Formats& formats : kFormats) {
      for (const int64_t o : {3, 16, 20, 32, 50}) {
        for (const int64_t i : {3, 16, 20, 32, 50}) {
          for (const int64_t k : {1, 3, 5, 7}) {
            SCOPED_TRACE(absl::StrCat(formats.name, ", type ",
                                      static_cast<int>(type), ": ", o, "x", i,
                                      "x", k, "x", k));
            const memory::dims dims = {o, i, k, k};
            const std::vector<float> weights = Weights(dims);
            const Desc forward(dims, type, formats.forward);
            const Desc data(dims, type, formats.data);
            bool once = false;
            const auto got =
                Converted(weights, Plain(dims), forward, data, &once);
            EXPECT_TRUE(once);
            ASSERT_EQ(got.first, Reordered(weights, Plain(dims), forward));
            ASSERT_EQ(got.second, Reordered(weights, Plain(dims), data));
          }
        }
      }
    }
  }
}

TEST(WeightConversionTest, ThreadsShareTheTiles) {
  const memory::dims dims = {128, 80, 3, 3};
  const std::vector<float> weights = Weights(dims);
  const Desc forward(dims, memory::data_type::f32, tag::OIhw16i16o);
  const Desc data(dims, memory::data_type::f32, tag::IOhw16o16i);
  for (const int threads : {1, 2, 3}) {
    SetComputeThreads(threads);
    bool once = false;
    const auto got = Converted(weights, Plain(dims), forward, data, &once);
    EXPECT_TRUE(once);
    EXPECT_EQ(got.first, Reordered(weights, Plain(dims), forward));
    EXPECT_EQ(got.second, Reordered(weights, Plain(dims), data));
  }
  SetComputeThreads(1);
}

TEST(WeightConversionTest, LeavesOtherFormatsToOnednn) {
  const memory::dims dims = {20, 16, 3, 5};
  const std::vector<float> weights = Weights(dims);
  const auto f32 = memory::data_type::f32;
  const Desc blocked(dims, f32, tag::OIhw16i16o);
  const Desc columns_first(dims, f32, tag::abdc);
  const Desc rounded(dims, memory::data_type::bf16, tag::OIhw16i16o);
  const Desc strided(dims, f32, tag::ohwi);
  const std::vector<std::vector<Desc>> cases = {
      {Plain(dims), blocked, columns_first},
      {Plain(dims), blocked, rounded},
      {strided, blocked, Desc(dims, f32, tag::OIhw16o16i)}};
  for (const std::vector<Desc>& c : cases) {
    bool once = true;
    const auto got = Converted(weights, c[0], c[1], c[2], &once);
    EXPECT_FALSE(once);
    EXPECT_EQ(got.first, Reordered(weights, c[0], c[1]));
    EXPECT_EQ(got.second, Reordered(weights, c[0], c[2]));
  }
}

TEST(WeightConversionTest, ConvertsOnlyWhatIsRead) {
  const memory::dims dims = {16, 16, 3, 3};
  const std::vector<float> weights = Weights(dims);
  const dnnl::engine engine = Engine();
  dnnl::stream stream(engine);
  const Desc plain = Plain(dims);
  const Desc blocked(dims, memory::data_type::f32, tag::OIhw16i16o);
  const Desc other(dims, memory::data_type::f32, tag::OIhw16o16i);
  const Bytes untouched = Space(blocked);
  struct Case {
    Desc forward;
    std::optional<Desc> data;
    bool writes_forward, writes_data;
  };
  for (const auto& [forward, data, writes_forward, writes_data] :
       {Case{blocked, std::nullopt, true, false},
        Case{blocked, blocked, true, false}, Case{blocked, plain, true, false},
        Case{plain, blocked, false, true}, Case{plain, plain, false, false},
        Case{blocked, other, true, true}}) {
    WeightConversion conversion(engine, plain, forward, data);
    EXPECT_TRUE(conversion.reads_plain_once());
    EXPECT_EQ(conversion.data_bytes() > 0, data.has_value() && *data != plain);
    Bytes first = untouched, second = untouched;
    const void* const used =
        conversion.Run(stream, weights.data(), first.data(), second.data());
    EXPECT_EQ(used, writes_forward ? static_cast<void*>(first.data())
                                   : const_cast<float*>(weights.data()));
    EXPECT_EQ(first != untouched, writes_forward);
    EXPECT_EQ(second != untouched, writes_data);
    // An evaluation wants no data weights.
    first = untouched;
    conversion.Run(stream, weights.data(), first.data(), nullptr);
    EXPECT_EQ(first != untouched, writes_forward);
  }
}

// Returns oneDNN's conversions of plain weights by shape ("64x32x3x3"): the
// reorders of row-major float32 in its log.
std::map<std::string, int> PlainReorders(const std::string& log) {
  std::map<std::string, int> counts;
  for (const auto& line : absl::StrSplit(log, '\n')) {
    if (!absl::StrContains(line, ",reorder,")) continue;
    if (!absl::StrContains(line, "src_f32::blocked:abcd:") &&
        !absl::StrContains(line, "src:f32::blocked:abcd:")) {
      continue;
    }
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    ++counts[fields[fields.size() - 2]];
  }
  return counts;
}

struct Step {
  const char* name;
  ConvolutionAlgorithm convolution;
  DataType type;
};

class ConvertsOnceTest : public testing::TestWithParam<Step> {};

// Counts a network's convolutions by the shape of their weights.
std::map<std::string, int> Layers(const Network& network) {
  std::map<std::string, int> counts;
  for (const Network::Operation& operation : network.operations()) {
    const auto* const op = std::get_if<ConvolutionOp>(&operation.kind);
    if (op == nullptr) continue;
    ++counts[absl::StrCat(operation.output.c, "x",
                          network.ShapeOf(operation.inputs[0]).c, "x",
                          op->kernel, "x", op->kernel)];
  }
  return counts;
}

// Returns oneDNN's log of a training step. kBackward marks where backward
// begins.
constexpr char kBackward[] = "first gradient\n";

std::string LogOfStep(CpuReplica& model) {
  // The batch has enough samples for Winograd.
  const std::vector<float> images(4 * model.input_shape().size(), 0.5f);
  const std::vector<int32_t> labels = {1, 2, 3, 0};
  const Batch batch = {.images = images, .labels = labels};
  // The first step makes the plans.
  EXPECT_THAT(model.ForwardBackward(batch, 1, [](int) {}), IsOk());
  testing::internal::CaptureStdout();
  dnnl_set_verbose(1);
  bool first = true;
  const auto metrics = model.ForwardBackward(batch, 1, [&](int) {
    if (std::exchange(first, false)) std::fputs(kBackward, stdout);
  });
  dnnl_set_verbose(0);
  EXPECT_THAT(metrics, IsOk());
  return testing::internal::GetCapturedStdout();
}

TEST_P(ConvertsOnceTest, InATrainingStep) {
  SetComputeThreads(1);
  absl::StatusOr<Network> network =
      CreateNetwork("resnet18_d2l:width=32",
                    {.channels = 3, .height = 64, .width = 64, .classes = 4});
  ASSERT_THAT(network, IsOk());
  const std::map<std::string, int> layers = Layers(*network);
  const auto model = CreateCpuReplica(
      *std::move(network),
      {.type = GetParam().type, .convolution = GetParam().convolution});
  if (absl::IsUnimplemented(model.status())) {
    GTEST_SKIP() << model.status().message();
  }
  ASSERT_THAT(model, IsOk());
  const std::string log = LogOfStep(**model);
  ASSERT_THAT(log, testing::HasSubstr(",convolution,"));  // The log is one.
  if (GetParam().convolution == ConvolutionAlgorithm::kWinograd &&
      onednn::HasWinograd()) {
    EXPECT_THAT(log, testing::HasSubstr("convolution_winograd"));
  }
  const auto backward = log.find(kBackward);
  ASSERT_NE(backward, std::string::npos);
  const std::map<std::string, int> forward =
      PlainReorders(log.substr(0, backward));
  // The input of the first layer has no gradient, so oneDNN converts its
  // weights.
  EXPECT_THAT(forward, testing::Not(testing::IsEmpty()));
  for (const auto& [shape, count] : forward) {
    if (!layers.contains(shape)) continue;
    EXPECT_LE(count, layers.at(shape)) << shape;
  }
  // Forward has converted the weights for backward. A pass of our own is not in
  // the log.
  EXPECT_THAT(PlainReorders(log.substr(backward)), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Steps, ConvertsOnceTest,
    testing::Values(
        Step{"Direct", ConvolutionAlgorithm::kDirect, DataType::kFloat32},
        Step{"Winograd", ConvolutionAlgorithm::kWinograd, DataType::kFloat32},
        Step{"BFloat16", ConvolutionAlgorithm::kDirect, DataType::kBFloat16}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
