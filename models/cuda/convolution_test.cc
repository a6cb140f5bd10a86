// Checks that every convolution of every network has a plan on every card in
// cards/, and on the installed GPU if there is one. Needs cuDNN, but neither a
// GPU nor a driver.
#include "models/cuda/convolution.h"

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/networks.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cudnn_status.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr ConvolutionPrecision kPrecisions[] = {
    ConvolutionPrecision::kBFloat16, ConvolutionPrecision::kFloat16,
    ConvolutionPrecision::kTf32, ConvolutionPrecision::kFloat32};

std::string DescriptionOf(const std::string& card) {
  const absl::StatusOr<std::string> json =
      ReadFile(absl::StrCat("models/cuda/cards/", card, ".json"));
  EXPECT_THAT(json, IsOk());
  return json.value_or("");
}

// Returns the cards by name. If a GPU is installed, prints its description,
// which can be saved in cards/.
std::map<std::string, CudnnDevice> LoadCards() {
  std::map<std::string, CudnnDevice> cards;
  for (const char* const name : {"a100", "b200", "h100", "rtx5090"}) {
    absl::StatusOr<CudnnDevice> card =
        CudnnDevice::OfDescription(DescriptionOf(name));
    EXPECT_THAT(card, IsOk());
    if (card.ok()) cards.emplace(name, *std::move(card));
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0) {
    cudnnHandle_t handle = nullptr;
    EXPECT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    const CudnnOwner<cudnnHandle_t> owner(handle);
    absl::StatusOr<CudnnDevice> card = CudnnDevice::OfHandle(handle);
    EXPECT_THAT(card, IsOk());
    if (card.ok()) {
      absl::PrintF("this GPU: %s\n", card->Description().value_or(""));
      cards.emplace("this GPU", *std::move(card));
    }
  }
  return cards;
}

// A network and the batch with which it trains.
struct Training {
  const char* model;
  NetworkInput input = {};
  int64_t batch = 256;
};
// 37 is the last batch of an epoch that is not divisible.
constexpr NetworkInput kPhotos = {
    .channels = 3, .height = 224, .width = 224, .classes = 1000};
const std::vector<Training>& SmallImages() {
  static const auto& small =
      *new std::vector<Training>{{"lenet"}, {"lenet_bn"}, {"resnet18_d2l"}};
  return small;
}
const std::vector<Training>& LargerImages() {
  static const auto& larger =
      *new std::vector<Training>{{"resnet18_d2l", {}, 37},
                                 {"resnet34", kPhotos, 64},
                                 {"resnet50", kPhotos, 64},
                                 {"vit_small_patch16_224", kPhotos, 64}};
  return larger;
}

// Returns the passes of every convolution of the networks, each shape once.
// Precision is bfloat16 and layout channels last; tests change these fields.
std::vector<ConvolutionGraph> GraphsOf(const std::vector<Training>& trainings) {
  std::vector<ConvolutionGraph> graphs;
  std::set<std::string> seen;
  for (const Training& training : trainings) {
    const auto network = CreateNetwork(training.model, training.input);
    EXPECT_THAT(network, IsOk());
    if (!network.ok()) continue;
    for (const Network::Operation& operation : network->operations()) {
      const auto* const op = std::get_if<ConvolutionOp>(&operation.kind);
      if (op == nullptr) continue;
      const Shape& input = network->ShapeOf(operation.inputs[0]);
      ConvolutionGraph graph = {.n = training.batch,
                                .c = input.c,
                                .h = input.h,
                                .w = input.w,
                                .out_channels = operation.output.c,
                                .kernel = op->kernel,
                                .stride = op->stride,
                                .padding = op->padding};
      for (const ConvolutionPass pass :
           {ConvolutionPass::kForward, ConvolutionPass::kInputGradient,
            ConvolutionPass::kWeightGradient}) {
        const bool forward = pass == ConvolutionPass::kForward;
        if (pass == ConvolutionPass::kInputGradient &&
            operation.inputs[0] == 0) {
          continue;
        }
        graph.pass = pass;
        graph.bias = forward && op->bias != kNoTensor;
        graph.relu = forward && op->relu;
        graph.name.clear();
        if (!seen.insert(Describe(graph)).second) continue;
        graph.name = absl::StrCat(training.model, " ", operation.name);
        graphs.push_back(graph);
      }
    }
  }
  return graphs;
}

// Returns, for example, "eng62 tensor 0.1": engine 62, on tensor cores, with
// 0.1 MiB of workspace.
std::string Cell(const ConvolutionPlan& plan) {
  const std::vector<std::string> words = absl::StrSplit(plan.engine(), ' ');
  return absl::StrFormat(
      "%s%s %.1f", words[0],
      absl::StrContains(plan.notes(), "tensor core") ? " tensor" : "",
      static_cast<double>(plan.workspace_bytes()) * 0x1p-20);
}

// Plans each graph in every precision, in `layout`; prints a table. Returns
// Describe() of the graphs without a plan, and of those whose plan does not
// keep the precision.
std::vector<std::string> FindUnplannedGraphs(
    const std::string& name, const CudnnDevice& card, Layout layout,
    const std::vector<ConvolutionGraph>& graphs,
    std::set<std::string>* engines = nullptr) {
  std::vector<std::string> unplanned;
  absl::PrintF("\n%s, %s: engine, workspace in MiB\n%-66s", name, Name(layout),
               "");
  for (const auto precision : kPrecisions) {
    absl::PrintF(" %-18s", Name(precision));
  }
  for (ConvolutionGraph graph : graphs) {
    graph.layout = layout;
    absl::PrintF("\n%-66s", absl::StrCat(graph.name, " ", Name(graph.pass), " ",
                                         graph.n, "x", graph.c, "x", graph.h,
                                         " ", graph.out_channels, "@",
                                         graph.kernel, "/", graph.stride));
    for (const auto precision : kPrecisions) {
      graph.precision = precision;
      const auto plan = ConvolutionPlan::Create(card, graph);
      absl::PrintF(" %-18s", plan.ok() ? Cell(*plan) : "none");
      if (plan.ok() && engines != nullptr) engines->insert(plan->engine());
      const bool rounds = plan.ok() &&
                          precision == ConvolutionPrecision::kFloat32 &&
                          (absl::StrContains(plan->notes(), "tensor core") ||
                           absl::StrContains(plan->notes(), "rounds inputs"));
      if (!plan.ok() || rounds ||
          absl::StrContains(plan->notes(), "nondeterministic") ||
          absl::StrContains(plan->notes(), "reduced precision sums")) {
        absl::PrintF("\n%s",
                     plan.ok() ? plan->notes() : plan.status().message());
        unplanned.push_back(Describe(graph));
      }
    }
  }
  absl::PrintF("\n");
  return unplanned;
}

TEST(ConvolutionPlanTest, EveryConvolutionOfEveryNetworkHasOne) {
  const std::vector<ConvolutionGraph> small = GraphsOf(SmallImages());
  // ResNet-18 has 11 shapes and LeNet 2; lenet_bn repeats LeNet's without ReLU.
  // Together: 15 forward passes, 13 weight gradients, and 11 input gradients,
  // since images need no gradient.
  EXPECT_EQ(small.size(), 39u);
  const std::vector<ConvolutionGraph> larger = GraphsOf(LargerImages());
  // ResNet-18 and ResNet-34 have 32 passes each. ResNet-50 has 54 besides those
  // that it shares with ResNet-34, and the transformer's patches have 2.
  EXPECT_EQ(larger.size(), 120u);
  std::set<std::set<std::string>> engines;
  for (const auto& [name, card] : LoadCards()) {
    std::set<std::string> of_card;
    for (const Layout layout : {Layout::kNhwc, Layout::kNchw}) {
      EXPECT_THAT(FindUnplannedGraphs(name, card, layout, small, &of_card),
                  IsEmpty());
    }
    EXPECT_THAT(
        FindUnplannedGraphs(name, card, Layout::kNhwc, larger, &of_card),
        IsEmpty());
    engines.insert(of_card);
  }
  // The cards get different engines, so cuDNN reads their descriptions.
  EXPECT_GE(engines.size(), 4u);
}

// The control: graphs without a plan are named.
TEST(ConvolutionPlanTest, NamesWhatHasNoPlan) {
  const auto card = CudnnDevice::OfDescription(DescriptionOf("h100"));
  ASSERT_THAT(card, IsOk());
  std::vector<ConvolutionGraph> graphs = GraphsOf(SmallImages());
  graphs.resize(3);
  graphs[1].name = "odd one";
  graphs[1].pass = ConvolutionPass::kForward;
  graphs[1].padding = -1;
  EXPECT_THAT(FindUnplannedGraphs("h100", *card, Layout::kNhwc, graphs),
              ElementsAre(StartsWith("odd one: forward bfloat16"),
                          StartsWith("odd one: forward float16"),
                          StartsWith("odd one: forward tf32"),
                          StartsWith("odd one: forward float32")));

  // cuDNN has no engine that writes float32 gradients of bfloat16 inputs. The
  // gradients of bfloat16 are therefore bfloat16.
  ConvolutionGraph wide = {.name = "wide",
                           .pass = ConvolutionPass::kWeightGradient,
                           .n = 8,
                           .c = 64,
                           .h = 56,
                           .w = 56,
                           .out_channels = 64,
                           .kernel = 3,
                           .padding = 1};
  EXPECT_THAT(ConvolutionPlan::Create(*card, wide), IsOk());
  wide.written = DataType::kFloat32;
  EXPECT_THAT(
      ConvolutionPlan::Create(*card, wide),
      StatusIs(absl::StatusCode::kUnimplemented,
               StartsWith("wide: weight gradient bfloat16 to float32 "
                          "nhwc [8,64,56,56] 64@3x3/1: no plan among ")));

  // The installed cuDNN has no code for Volta cards.
  std::string old = DescriptionOf("h100");
  old.replace(old.find("\"deviceVer\": 900"), 16, "\"deviceVer\": 700");
  const auto volta = CudnnDevice::OfDescription(old);
  ASSERT_THAT(volta, IsOk());
  wide.written.reset();
  EXPECT_THAT(ConvolutionPlan::Create(*volta, wide),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("wide: ")));
}

TEST(ConvolutionPlanTest, KeepsThePrecisionThatIsAskedFor) {
  const auto card = CudnnDevice::OfDescription(DescriptionOf("h100"));
  ASSERT_THAT(card, IsOk());
  ConvolutionGraph graph = {.name = "g",
                            .precision = ConvolutionPrecision::kTf32,
                            .n = 8,
                            .c = 64,
                            .h = 14,
                            .w = 14,
                            .out_channels = 64,
                            .kernel = 3};
  const auto tf32 = ConvolutionPlan::Create(*card, graph);
  ASSERT_THAT(tf32, IsOk());
  EXPECT_THAT(tf32->notes(), HasSubstr("tensor core"));
  graph.precision = ConvolutionPrecision::kFloat32;
  const auto float32 = ConvolutionPlan::Create(*card, graph);
  ASSERT_THAT(float32, IsOk());
  EXPECT_THAT(float32->notes(), Not(HasSubstr("tensor core")));
  EXPECT_GT(float32->rejected_count(), 0);
}

TEST(ConvolutionPlanTest, RejectsGraphsAndCardsThatMakeNoSense) {
  for (const char* const json : {"", "[]", "{\"deviceVer\": 900}"}) {
    EXPECT_THAT(CudnnDevice::OfDescription(json),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  }
  const auto card = CudnnDevice::OfDescription(DescriptionOf("h100"));
  ASSERT_THAT(card, IsOk());
  const ConvolutionGraph right = {.name = "g", .c = 8, .h = 4, .w = 4};
  ConvolutionGraph large = right, empty = right, backward = right;
  large.kernel = 5;
  empty.n = 0;
  backward.pass = ConvolutionPass::kInputGradient;
  backward.bias = true;
  for (const ConvolutionGraph& graph : {large, empty, backward}) {
    EXPECT_THAT(
        ConvolutionPlan::Create(*card, graph),
        StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("g: ")));
  }
  ConvolutionGraph blocked = right;
  blocked.c = blocked.out_channels = 16;
  blocked.layout = Layout::kNchw16c;
  EXPECT_THAT(ConvolutionPlan::Create(*card, blocked),
              StatusIs(absl::StatusCode::kUnimplemented, StartsWith("g: ")));
}

TEST(CudnnDeviceTest, DescribesItself) {
  const auto card = CudnnDevice::OfDescription(DescriptionOf("a100"));
  ASSERT_THAT(card, IsOk());
  const absl::StatusOr<std::string> json = card->Description();
  ASSERT_THAT(json, IsOk());
  EXPECT_THAT(*json, HasSubstr("NVIDIA A100-SXM4-40GB"));
  EXPECT_THAT(CudnnDevice::OfDescription(*json), IsOk());
}

}  // namespace
}  // namespace lockstep
