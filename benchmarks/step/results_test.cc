// Tests the formulas, the bars and the document of the report.
#include "benchmarks/step/results.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/vector_unit.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/step/bars.h"
#include "benchmarks/step/document.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/precision.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "nlohmann/json.hpp"
#include "report/document.h"
#include "report/write.h"
#include "report/write_html.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::SizeIs;

// Returns a report of the bars' ResNet-34 step. Ours takes 1 s, and 2 s in a
// round in which all subjects were twice as slow. The peers are two modes of
// --python's PyTorch and one of the system's.
StepReport ExampleReport() {
  StepResult result = {
      .one = {.spec = "resnet34",
              .batch = 16,
              .input = {.channels = 3, .height = 112, .width = 112}},
      .flops = 80'000'000'000,
      .peaks = {100e9, 50e9, 100e9},
      .rows = {
          {.subject = "ours", .seconds = {1, 2, 1}, .memory_bytes = 200 << 20},
          {.subject = "PyTorch 2.15.0 eager nchw",
           .newest = true,
           .seconds = {1.5, 3, 1.6},
           .memory_bytes = 250 << 20},
          {.subject = "PyTorch 2.15.0 compile nhwc",
           .newest = true,
           .seconds = {1.25, 2.4, 1.2},
           .memory_bytes = 500 << 20},
          {.subject = "PyTorch 1.13.0 eager nhwc",
           .seconds = {1.1, 2.2, 1.1}}}};
  DeriveStep(result);
  return {.origin = ExampleOrigin("bazel run //benchmarks:step"),
          .newest = "PyTorch 2.15.0 (python3)",
          .vector_unit = VectorUnit::kAvx512,
          .results = {std::move(result)},
          .missing = {"lenet: compile nchw: no compiler"}};
}

TEST(DeriveStepTest, ComparesRoundByRound) {
  const StepReport report = ExampleReport();
  const StepResult& result = report.results[0];
  EXPECT_EQ(result.rows[0].step.median, 1);
  EXPECT_EQ(result.rows[0].step.max, 2);
  EXPECT_EQ(result.rows[0].images_per_second, 16);
  EXPECT_THAT(result.rows[0].peak_share, Optional(DoubleEq(0.8)));
  EXPECT_FALSE(result.rows[0].ratio.has_value());
  EXPECT_THAT(result.rows[2].ratio->median, DoubleEq(1.2));
  EXPECT_THAT(result.rows[2].ratio->max, DoubleEq(1.25));
  // The best peer is the fastest of --python's PyTorch, although the system's
  // is faster.
  ASSERT_NE(FastestNewestPeer(result), nullptr);
  EXPECT_EQ(FastestNewestPeer(result)->subject, "PyTorch 2.15.0 compile nhwc");
}

TEST(BarsTest, AreHeldAgainstTheNewestPyTorch) {
  StepReport report = ExampleReport();
  std::vector<report::Bar> bars = BarsOf(report);
  ASSERT_THAT(bars, SizeIs(9));
  EXPECT_EQ(bars[0].Outcome(), "not measured");
  EXPECT_THAT(bars[2].value, Optional(DoubleEq(1.2)));
  EXPECT_THAT(bars[8].value, Optional(DoubleEq(0.8)));
  EXPECT_EQ(bars[8].Goal(), "at most 1 times that of PyTorch");
  EXPECT_TRUE(bars[8].Met());
  report.results[0].rows[0].memory_bytes = 251 << 20;
  EXPECT_FALSE(BarsOf(report)[8].Met());
  // Another type, number of threads or batch has no bar. Without --python's
  // PyTorch no bar has a value either.
  for (const auto& change : std::vector<void (*)(StepResult&)>{
           [](StepResult& result) {
             result.one.precision = ConvolutionPrecision::kBFloat16;
           },
           [](StepResult& result) { result.one.threads = 2; },
           [](StepResult& result) { result.one.batch = 8; },
           [](StepResult& result) {
             for (StepRow& row : result.rows) row.newest = false;
           }}) {
    StepReport other = ExampleReport();
    change(other.results[0]);
    EXPECT_FALSE(BarsOf(other)[2].value.has_value());
  }
}

TEST(BarsTest, AskOfEachStepItsOwnSpeed) {
  const NetworkInput gray = {.channels = 1, .height = 28, .width = 28};
  const NetworkInput color = {.channels = 3, .height = 112, .width = 112};
  struct {
    StepCase one;
    double needed, needed_without_avx512;
  } const cases[] = {
      {{.spec = "resnet18_d2l", .batch = 32, .input = gray}, 1.5, 1.1},
      {{.spec = "resnet18_d2l", .batch = 16, .input = gray}, 1.5, 1.1},
      {{.spec = "resnet34", .batch = 16, .input = color}, 1.5, 1.1},
      {{.spec = "lenet", .batch = 256, .input = gray}, 1.15, 1.15},
      {{.spec = "vit_tiny_patch16_224", .batch = 16, .input = color},
       1.05,
       1.05}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    for (const VectorUnit unit :
         {VectorUnit::kAvx512, VectorUnit::kAvx2, VectorUnit::kBaseline}) {
      const double needed = unit == VectorUnit::kAvx512
                                ? cases[i].needed
                                : cases[i].needed_without_avx512;
      for (const double ratio : {needed, needed - 0.01}) {
        StepResult result = {
            .one = cases[i].one,
            .rows = {
                {.subject = "ours", .seconds = {1}},
                {.subject = "PyTorch", .newest = true, .seconds = {ratio}}}};
        DeriveStep(result);
        const std::vector<report::Bar> bars =
            BarsOf({.vector_unit = unit, .results = {result}});
        for (size_t j = 0; j < bars.size(); ++j) {
          EXPECT_EQ(bars[j].value.has_value(), j == i) << i << " " << j;
        }
        EXPECT_EQ(bars[i].needed, needed) << i;
        EXPECT_EQ(bars[i].Met(), ratio == needed) << i << " " << ratio;
      }
    }
  }
}

// Adds the measurements of --layers. A copy moves 10 GB/s in caches and 8 GB/s
// through the step's memory. Batch norms must move 6 GB forward and 10 GB
// backward.
void AddLayers(double forward_seconds, double backward_seconds,
               StepResult& result) {
  result.copy = 10e9;
  result.far_copy = 8e9;
  result.layers = {{.what = "conv",
                    .forward_seconds = 3,
                    .backward_seconds = 5,
                    .forward_bytes = 1'000'000'000,
                    .backward_bytes = 1'000'000'000}};
  for (const char* const what : {"batch norm+relu", "batch norm+relu+add"}) {
    result.layers.push_back({.what = what,
                             .forward_seconds = forward_seconds / 2,
                             .backward_seconds = backward_seconds / 2,
                             .forward_bytes = 3'000'000'000,
                             .backward_bytes = 5'000'000'000,
                             .batch_norm = true});
  }
}

TEST(BarsTest, HoldBatchNormAgainstACopy) {
  StepReport report = ExampleReport();
  EXPECT_EQ(BarsOf(report)[7].Outcome(), "not measured");
  EXPECT_FALSE(BatchNormTimesOf(report.results[0]).has_value());
  AddLayers(/*forward_seconds=*/0.75, /*backward_seconds=*/1.25,
            report.results[0]);
  EXPECT_THAT(BarsOf(report)[7].value, Optional(DoubleNear(80, 1e-9)));
  AddLayers(0.75, 1.24, report.results[0]);
  EXPECT_TRUE(BarsOf(report)[7].Met());
  AddLayers(0.75, 1.26, report.results[0]);
  EXPECT_FALSE(BarsOf(report)[7].Met());
  AddLayers(0.6, 2, report.results[0]);
  const std::optional<BatchNormTimes> times =
      BatchNormTimesOf(report.results[0]);
  ASSERT_TRUE(times.has_value());
  EXPECT_THAT(times->forward_share, DoubleNear(1, 1e-9));
  EXPECT_THAT(times->backward_share, DoubleNear(0.5, 1e-9));
  EXPECT_THAT(times->share, DoubleNear(1.6 / 2.6, 1e-9));
  EXPECT_THAT(times->far_share, DoubleNear(2 / 2.6, 1e-9));
  // The network has no batch norm.
  report.results[0].layers.resize(1);
  EXPECT_FALSE(BatchNormTimesOf(report.results[0]).has_value());
}

TEST(LayersOfTest, AddsUpWhatIsAlikeAndFindsWhatBounds) {
  const Network network = *CreateNetwork("vit:depth=3");
  const StepCase one = {.spec = "vit", .batch = 2};
  const std::vector<double> seconds(network.operations().size(), 1e-3);
  const std::vector<LayerRow> rows =
      LayersOf(network, one, std::vector<std::string>(seconds.size()), seconds,
               seconds, /*peak=*/1e9, /*copy=*/1e12);
  int count = 0;
  int64_t flops = 0;
  for (const LayerRow& row : rows) {
    count += row.count;
    flops += row.flops;
    EXPECT_THAT(row.forward_seconds, DoubleNear(1e-3 * row.count, 1e-9));
    // With this bandwidth, bytes cost almost no time.
    EXPECT_EQ(row.memory_bound, row.flops == 0) << row.what;
  }
  EXPECT_EQ(count, static_cast<int>(network.operations().size()));
  EXPECT_EQ(flops, StepFlops(network, 2));
  EXPECT_LT(rows.size(), network.operations().size() / 2);
  EXPECT_EQ(rows[0].count, 6);  // Six layer norms or additions.
}

// Layers of one kind and size with two algorithms are two rows, in every form
// of the report.
TEST(LayersOfTest, SeparatesTheAlgorithms) {
  const Network network = *CreateNetwork("resnet18_d2l");
  const StepCase one = {.spec = "resnet18_d2l", .batch = 16};
  const size_t count = network.operations().size();
  std::vector<std::string> chosen(count);
  int convolutions = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!std::holds_alternative<ConvolutionOp>(network.operations()[i].kind)) {
      continue;
    }
    constexpr const char* kAlgorithms[] = {"winograd", "products of matrices",
                                           "winograd, direct", "direct"};
    chosen[i] = kAlgorithms[convolutions++ % 4];
  }
  const std::vector<double> seconds(count, 1e-3);
  StepReport report = ExampleReport();
  report.results[0].layout = "nchw16c";
  report.results[0].layers = LayersOf(network, one, chosen, seconds, seconds,
                                      /*peak=*/1e13, /*copy=*/1e12);
  std::map<std::string, int> counts;
  std::set<std::pair<std::string, std::string>> seen;
  for (const LayerRow& row : report.results[0].layers) {
    EXPECT_TRUE(seen.emplace(row.what, row.chosen).second) << row.what;
    counts[row.chosen] += row.count;
  }
  counts.erase("");
  EXPECT_THAT(counts, testing::SizeIs(4));
  EXPECT_EQ(counts["winograd"], (convolutions + 3) / 4);
  const report::Document document = StepDocument(report);
  const std::string text = report::TerminalText(document);
  ExpectNarrow(text);
  EXPECT_THAT(text, AllOf(HasSubstr(" n chosen "), HasSubstr(" winograd "),
                          HasSubstr(" products "), HasSubstr(" mixed "),
                          HasSubstr("The layout of activations is nchw16c.")));
  EXPECT_THAT(report::HtmlPage(document), HasSubstr("winograd"));
  const nlohmann::json json = nlohmann::json::parse(report::JsonText(document));
  const nlohmann::json& result = json["results"][0];
  EXPECT_EQ(result["layout"], "nchw16c");
  std::set<std::string> in_json;
  for (const auto& layer : result["layers"]) {
    in_json.insert(layer["chosen"].get<std::string>());
  }
  EXPECT_THAT(in_json,
              testing::ElementsAre("", "direct", "products of matrices",
                                   "winograd", "winograd, direct"));
}

// The names of layers fit the terminal's column.
TEST(LayersOfTest, NamesFitTheTerminal) {
  for (const NetworkEntry& entry : ListedNetworks()) {
    const Network network = *CreateNetwork(entry.name, entry.input);
    const size_t count = network.operations().size();
    const std::vector<double> seconds(count, 1e-3);
    const std::vector<std::string> chosen(count);
    for (const LayerRow& row :
         LayersOf(network, {.spec = entry.name, .batch = 16}, chosen, seconds,
                  seconds, /*peak=*/1e9, /*copy=*/1e9)) {
      EXPECT_LE(row.what.size(), 41u) << row.what;
    }
  }
}

TEST(StepDocumentTest, HoldsTheNumbersAndGrows) {
  StepReport report = ExampleReport();
  const report::Document document = StepDocument(report);
  const std::string text = report::TerminalText(document);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("\nresnet34, batch 16, 3x112x112, 1 thread, float32\n"),
            HasSubstr("\nours                              1000     "
                      "1000..2000     16.0   80%    200                  -\n"),
            HasSubstr("1.20 (1.20..1.25)\n"),
            HasSubstr("not available: lenet: compile nchw: no compiler"),
            HasSubstr("at least 1.5 times as fast as PyTorch"),
            HasSubstr("The processor has AVX-512: the bar of a ResNet's step "
                      "is 1.5."),
            Not(HasSubstr("Batch norm, with its addition and ReLU: "))));
  ExpectNarrow(text);
  EXPECT_THAT(text, testing::StartsWith(report::TerminalText(
                        StepDocument(report, /*finished=*/false))));
  const report::Value& result = document.data["results"][0];
  EXPECT_EQ(result["model"], "resnet34");
  EXPECT_EQ(result["subjects"][2]["ratio"]["median"], 1.2);
  EXPECT_TRUE(result["subjects"][3]["memory_bytes"].is_null());
  EXPECT_TRUE(result["batch_norm"].is_null());
  EXPECT_EQ(document.data["avx512"], true);
  EXPECT_EQ(document.bars[2].Outcome(), "1.20: NOT met");
}

// The terminal, the page and the JSON agree about the bars.
TEST(StepDocumentTest, SaysInEveryFormWhichBarsAreMet) {
  StepReport report = ExampleReport();
  report.vector_unit = VectorUnit::kAvx2;
  AddLayers(/*forward_seconds=*/0.6, /*backward_seconds=*/2, report.results[0]);
  const report::Document document = StepDocument(report);
  ExpectNarrow(report::TerminalText(document));
  for (std::string text :
       {report::TerminalText(document), report::HtmlPage(document)}) {
    for (char& c : text) c = c == '\n' ? ' ' : c;
    EXPECT_THAT(text,
                AllOf(HasSubstr("at least 1.1 times as fast as PyTorch"),
                      HasSubstr("1.20: met"), HasSubstr("61.5: NOT met"),
                      HasSubstr("0.80: met"), HasSubstr("not measured"),
                      HasSubstr("The processor has no AVX-512"),
                      HasSubstr("2000 ms backward, 50.0%; together 61.5%")));
  }
  const nlohmann::json json = nlohmann::json::parse(report::JsonText(document));
  EXPECT_EQ(json["avx512"], false);
  EXPECT_EQ(json["bars"].size(), 9u);
  EXPECT_EQ(json["bars"][2]["at_least"], 1.1);
  EXPECT_EQ(json["bars"][2]["met"], true);
  EXPECT_EQ(json["bars"][7]["at_least"], 80);
  EXPECT_EQ(json["bars"][7]["met"], false);
  EXPECT_NEAR(json["results"][0]["batch_norm"]["share"], 1.6 / 2.6, 1e-9);
}

}  // namespace
}  // namespace lockstep::benchmarks
