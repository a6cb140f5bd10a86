// Checks that the attention of vision transformers has plans on every card in
// cards/. Needs cuDNN, but neither a GPU nor a driver.
#include "models/cuda/fused_attention.h"

#include <dlfcn.h>

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/cudnn_plan.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kCards[] = {"a100", "b200", "h100", "rtx5090"};

CudnnDevice CardOf(const std::string& name) {
  const absl::StatusOr<std::string> json =
      ReadFile(absl::StrCat("models/cuda/cards/", name, ".json"));
  EXPECT_THAT(json, IsOk());
  absl::StatusOr<CudnnDevice> card = CudnnDevice::OfDescription(*json);
  EXPECT_THAT(card, IsOk());
  return *std::move(card);
}

// Loads plan_driver.so before cuDNN looks for the driver, and so in its place:
// a real driver would refuse kernels for other cards than its own.
class FusedAttentionPlanTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_NE(dlopen("models/cuda/plan_driver.so", RTLD_NOW | RTLD_GLOBAL),
              nullptr)
        << dlerror();
  }
};

// Returns both passes of attention: ViT-S on 224x224 images and the smallest
// heads. The whole grid has both 16-bit types of each shape, ViT-Ti, ViT-B, the
// last batch of an epoch and the bundle's network for 28x28 images. cuDNN takes
// half a second to compile an engine.
std::vector<AttentionGraph> Graphs() {
  constexpr DataType kBFloat16 = DataType::kBFloat16;
  constexpr DataType kFloat16 = DataType::kFloat16;
  const AttentionGraph vit = {
      .name = "ViT-S", .n = 64, .heads = 6, .length = 197, .size = 64};
  const AttentionGraph small = {
      .name = "small", .n = 8, .heads = 3, .length = 7};
  std::vector<std::pair<AttentionGraph, DataType>> shapes = {{vit, kBFloat16},
                                                             {small, kFloat16}};
  if (IsExhaustive()) {
    shapes.insert(shapes.end(), {{vit, kFloat16}, {small, kBFloat16}});
    for (const DataType type : {kBFloat16, kFloat16}) {
      for (const auto& [name, n, heads, length] :
           std::vector<std::tuple<const char*, int64_t, int64_t, int64_t>>{
               {"ViT-Ti", 64, 3, 197},
               {"ViT-B", 64, 12, 197},
               {"tail", 37, 6, 197},
               {"28x28", 256, 3, 17}}) {
        AttentionGraph graph = vit;
        graph.name = name;
        graph.n = n;
        graph.heads = heads;
        graph.length = length;
        shapes.emplace_back(graph, type);
      }
    }
  }
  std::vector<AttentionGraph> graphs;
  for (auto& [graph, type] : shapes) {
    graph.type = type;
    for (const auto pass :
         {AttentionPass::kForward, AttentionPass::kBackward}) {
      graph.pass = pass;
      graphs.push_back(graph);
    }
  }
  return graphs;
}

TEST_F(FusedAttentionPlanTest, EveryAttentionHasOne) {
  std::set<std::string> engines;
  for (const char* const name : kCards) {
    const CudnnDevice card = CardOf(name);
    for (const AttentionGraph& graph : Graphs()) {
      const auto plan = FusedAttentionPlan::Create(card, graph);
      ASSERT_THAT(plan, IsOk()) << name;
      absl::PrintF("%-8s %-52s %-16s %6.1f MiB, %s\n", name, Describe(graph),
                   plan->engine(),
                   static_cast<double>(plan->workspace_bytes()) * 0x1p-20,
                   plan->notes());
      engines.insert(plan->engine());
      EXPECT_THAT(plan->notes(), HasSubstr("tensor core"));
    }
  }
  // The cards get different engines, so cuDNN reads their descriptions.
  EXPECT_GE(engines.size(), 4u);
}

TEST_F(FusedAttentionPlanTest, SaysWhatIsNotSupported) {
  const CudnnDevice card = CardOf("h100");
  const AttentionGraph right = {.name = "g", .length = 8};
  EXPECT_THAT(FusedAttentionPlan::Create(card, right), IsOk());
  const auto error = [&](void (*change)(AttentionGraph&)) {
    AttentionGraph graph = right;
    change(graph);
    return FusedAttentionPlan::Create(card, graph).status();
  };
  const auto says = [](const char* what) {
    return StatusIs(absl::StatusCode::kUnimplemented,
                    AllOf(StartsWith("g: attention "), HasSubstr(what)));
  };
  EXPECT_THAT(error([](auto& g) { g.type = DataType::kFloat32; }),
              says("float32 [1,8] 1x8: the type does not have 16 bits"));
  EXPECT_THAT(error([](auto& g) { g.size = 12; }),
              says("a head's size is not a multiple of 8 from 8 to 128"));
  EXPECT_THAT(error([](auto& g) { g.size = 136; }),
              says("a head's size is not a multiple"));
  EXPECT_THAT(error([](auto& g) { g.length = 1; }),
              says("the length is below 2"));
  EXPECT_THAT(error([](auto& g) { g.size = 0; }),
              says("a head's size is not a multiple"));
  EXPECT_THAT(error([](auto& g) { g.n = 0; }), says("a tensor is empty"));
  EXPECT_THAT(error([](auto& g) { g.heads = 0; }), says("a tensor is empty"));
}

}  // namespace
}  // namespace lockstep
