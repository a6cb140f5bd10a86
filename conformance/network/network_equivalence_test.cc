// Checks every network on 1, 2, 3 and 4 ranks. On one rank it computes what the
// float64 reference computes. On several ranks, with SyncBatchNorm if there is
// batch norm, it takes one rank's steps on the global batch, however the batch
// is dealt. The checks also detect a rank that skips a step.
// local_batch_norm_test.cc covers local batch norm.
//
// The reference is float64 at the run's own parameters (network_checks.h). The
// allowed error of float32 is that of the same plain loops in float32. This
// requires steps in which no ReLU input and no lead of a maximum is within
// rounding of zero. Otherwise one order of additions could let a gradient
// through that another order stops. The tests assert that the fixtures satisfy
// this: every such number is kNetworkClearance times as far from zero as its
// float32 error.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/device_mirror.h"
#include "conformance/network/architecture_mutants.h"
#include "conformance/network/network_causes.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {

namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

class EveryNetworkTest : public testing::TestWithParam<const TestedNetwork*> {};

// Checks the assumptions of the tolerances.
TEST_P(EveryNetworkTest, NoDerivativeIsInDoubtAndNoGradientNearZero) {
  const TestedNetwork& tested = *GetParam();
  const NetworkRun run = {
      .deal = {8}, .steps = tested.steps(), .tested = &tested};
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  for (int step = 0; step < run.steps; ++step) {
    const StepInput in = {tested, step, trace->first.parameters[step],
                          trace->ranks[0][step].running,
                          trace->first.samples[step]};
    const double clearance = Clearance(in);
    EXPECT_GT(clearance, kNetworkClearance) << "step " << step;
    EXPECT_LT(WidestTolerance(in), 1) << "step " << step;
    RecordProperty(absl::StrCat("clearance_", step), absl::StrCat(clearance));
    const auto norms =
        TensorNorms(tested.specs(), ReferenceOf(in).want.gradient);
    for (size_t i = 0; i < norms.size(); ++i) {
      if (tested.HasZeroGradient(tested.specs()[i])) {
        EXPECT_LT(norms[i], 1e-14) << tested.specs()[i].name;
      } else {
        EXPECT_GT(norms[i], 1e-4) << tested.specs()[i].name;
      }
    }
  }
}

// Expects that all checks pass. Returns the largest error, relative to its
// limit.
double ExpectPasses(const NetworkVerdicts& verdicts) {
  for (const auto& [check, status] : verdicts.checks) {
    EXPECT_THAT(status, IsOk()) << check;
  }
  testing::Test::RecordProperty("furthest", absl::StrCat(verdicts.furthest));
  return verdicts.furthest / kNetworkSpread;
}

// Synchronised or not: a single rank lacks no other rank's batch.
TEST_P(EveryNetworkTest, OneRankPasses) {
  for (const bool sync_bn : {true, false}) {
    const NetworkRun run = {.deal = {kNetworkBatchSize},
                            .steps = GetParam()->steps(),
                            .sync_bn = sync_bn,
                            .tested = GetParam()};
    const auto trace = RunNetwork(run, Mutation());
    ASSERT_THAT(trace, IsOk());
    SCOPED_TRACE(sync_bn);
    ExpectPasses(CheckNetwork(run, *trace));
  }
}

// The reference in T for images with mixed labels: the losses, and in training
// the gradients.
template <typename T>
struct MixedPass {
  MixedPass(const TestedNetwork& tested, const Batch& batch, bool training)
      : parameters(tested.start().begin(), tested.start().end()),
        running(Widen(tested.Running(1))),
        pass(tested.network(), parameters, running, batch, training,
             MaskOf(/*step=*/0), /*world_size=*/1, /*sum_over_ranks=*/nullptr,
             std::is_same_v<T, float> ? tested.winograd_rule() : nullptr) {}

  static std::vector<T> Widen(const std::vector<float>& values) {
    return {values.begin(), values.end()};
  }

  const std::vector<T> parameters, running;
  const NetworkReference<T> pass;
};

TEST_P(EveryNetworkTest, EvaluatesAndTakesMixedLabelsAsTheReferenceDoes) {
  SetComputeThreads(1);
  const TestedNetwork& tested = *GetParam();
  const std::unique_ptr<Model> model = tested.CreateModel();
  FillNetworkStart(tested, /*rank=*/0, model->parameters(), model->buffers());
  const Samples samples = tested.StepBatch(0);
  std::vector<int32_t> others(samples.labels);
  std::rotate(others.begin(), others.begin() + 1, others.end());
  std::vector<float> shares;
  for (int64_t i = 0; i < samples.size(); ++i) {
    shares.push_back(1 - static_cast<float>(i) / 16);
  }
  const Batch batch = {.images = samples.images,
                       .labels = samples.labels,
                       .other_labels = others,
                       .shares = shares,
                       .seed = kMaskSeed};
  for (const bool training : {false, true}) {
    const MixedPass<double> exact(tested, batch, training);
    const MixedPass<float> rounded(tested, batch, training);
    const auto got = training ? model->ForwardBackward(batch, 1, [](int) {})
                              : model->Evaluate(batch);
    ASSERT_THAT(got, IsOk());
    EXPECT_NEAR(
        got->loss_sum, exact.pass.loss_sum,
        kNetworkSpread * LossRounding(rounded.pass.losses, exact.pass.losses));
    EXPECT_EQ(got->correct, exact.pass.correct);
    if (!training) continue;
    const std::vector<double> want = exact.pass.Gradient(1);
    const auto rounding =
        TensorDistances(tested.specs(), rounded.pass.Gradient(1), want);
    const auto distances =
        TensorDistances(tested.specs(), model->parameters().gradients(), want);
    for (size_t i = 0; i < distances.size(); ++i) {
      EXPECT_LE(distances[i], kNetworkSpread * rounding[i])
          << tested.specs()[i].name;
    }
  }
  // The control: one sample's share is wrong.
  const MixedPass<double> exact(tested, batch, /*training=*/false);
  const MixedPass<float> rounded(tested, batch, /*training=*/false);
  shares[1] = 0.75f;
  const auto other = model->Evaluate(batch);
  ASSERT_THAT(other, IsOk());
  EXPECT_GT(
      std::abs(other->loss_sum - exact.pass.loss_sum),
      kNetworkSpread * LossRounding(rounded.pass.losses, exact.pass.losses));
}

// A sample's loss with label k is minus the logarithm of the probability of
// class k. The losses with all labels are therefore its outputs up to a
// constant.
TEST_P(EveryNetworkTest, OutputsAreTheReferences) {
  SetComputeThreads(1);
  const TestedNetwork& tested = *GetParam();
  const std::unique_ptr<Model> model = tested.CreateModel();
  FillNetworkStart(tested, /*rank=*/0, model->parameters(), model->buffers());
  const Samples samples = tested.StepBatch(0);
  const auto classes = static_cast<int32_t>(tested.network().classes());
  const size_t size = samples.images.size() / samples.labels.size();
  for (const size_t sample : {0, 3}) {
    const std::span<const float> image =
        std::span(samples.images).subspan(sample * size, size);
    std::vector<float> images;
    std::vector<int32_t> labels;
    for (int32_t k = 0; k < classes; ++k) {
      images.insert(images.end(), image.begin(), image.end());
      labels.push_back(k);
    }
    const Batch all = {.images = images, .labels = labels};
    const MixedPass<double> exact(tested, all, /*training=*/false);
    const MixedPass<float> rounded(tested, all, /*training=*/false);
    const double bound =
        kNetworkSpread * LossRounding(rounded.pass.losses, exact.pass.losses);
    std::vector<double> got;
    for (const int32_t& label : labels) {
      const auto metrics =
          model->Evaluate({.images = image, .labels = std::span(&label, 1)});
      ASSERT_THAT(metrics, IsOk());
      got.push_back(metrics->loss_sum);
      EXPECT_NEAR(got.back(), exact.pass.losses[label], bound) << label;
    }
    // The control: another class's output.
    EXPECT_GT(std::abs(got[0] - exact.pass.losses[1]), bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, EveryNetworkTest,
                         testing::ValuesIn(AllTestedNetworks()),
                         [](const auto& info) { return info.param->name(); });

class NetworkEquivalenceTest : public testing::TestWithParam<NetworkRun> {};

// Returns the claim of the network's family.
std::string ClaimOf(const TestedNetwork& tested) {
  const std::string name = tested.name();
  if (name.starts_with("resnet18d2l")) return "resnet_steps";
  if (name.starts_with("resnet")) return "torchvision_resnet_steps";
  if (name.starts_with("vit")) return "vit_steps";
  EXPECT_TRUE(name.starts_with("lenet") || name.starts_with("mlp"))
      << "no claim says anything of " << name;
  return "lenet_steps";
}

// Returns the claim that processes have the bits of threads.
std::string BitsClaimOf(const TestedNetwork& tested) {
  if (&tested == &TestedResNet()) return "resnet_bits";
  return tested.name().starts_with("resnet") ? "torchvision_resnet_bits"
                                             : "vit_bits";
}

TEST_P(NetworkEquivalenceTest, StepsAreOneRanks) {
  ClaimRecorder recorder({ClaimOf(*GetParam().tested), "threads",
                          GetParam().world_size(), "float32"});
  const auto trace = RunNetwork(GetParam(), Mutation());
  ASSERT_THAT(trace, IsOk());
  recorder.Measure(ExpectPasses(CheckNetwork(GetParam(), *trace)));
}

// Returns runs of every network on 2, 3 and 4 ranks. The ranks' shares of the
// batch are even (as far as possible), uneven, or empty for some rank.
// OneRankPasses covers one rank.
std::vector<NetworkRun> RankMatrix() {
  std::vector<NetworkRun> runs;
  for (const TestedNetwork* tested : AllTestedNetworks()) {
    for (const auto& [even, uneven, empty] : NetworkDeals()) {
      // With four ranks, each gradient is sent by itself in two of three runs.
      const int64_t bucket_bytes = even.size() == 4 ? 1 : 0;
      const int steps = std::min(2, tested->steps());
      runs.push_back({.deal = even,
                      .steps = steps,
                      .bucket_bytes = bucket_bytes,
                      .tested = tested});
      runs.push_back(
          {.deal = uneven, .steps = tested->steps(), .tested = tested});
      runs.push_back({.deal = empty,
                      .steps = steps,
                      .bucket_bytes = bucket_bytes,
                      .tested = tested});
    }
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Ranks, NetworkEquivalenceTest,
                         testing::ValuesIn(RankMatrix()),
                         [](const auto& info) { return info.param.name(); });

class NetworkBackendsTest
    : public testing::TestWithParam<const TestedNetwork*> {};

TEST_P(NetworkBackendsTest, ProcessesHaveTheBitsOfThreads) {
  NetworkRun run = {.deal = {3, 5},
                    .steps = std::min(2, GetParam()->steps()),
                    .tested = GetParam()};
  ClaimRecorder recorder(
      {BitsClaimOf(*run.tested), "processes", run.world_size(), "float32"});
  // Processes must start before there are threads.
  run.ranks = RanksOf(Backend::kProcesses);
  const auto processes = RunNetwork(run, Mutation());
  run.ranks = nullptr;
  ASSERT_THAT(processes, IsOk());
  const auto threads = RunNetwork(run, Mutation());
  ASSERT_THAT(threads, IsOk());
  for (int rank = 0; rank < run.world_size(); ++rank) {
    EXPECT_EQ(Fingerprint(processes->ranks[rank]),
              Fingerprint(threads->ranks[rank]))
        << rank;
  }
  recorder.AddExact();
  run.deal = {5, 3};
  const auto other = RunNetwork(run, Mutation());
  ASSERT_THAT(other, IsOk());
  EXPECT_NE(Fingerprint(processes->ranks[0]), Fingerprint(other->ranks[0]));
}

// Gradients are summed while backward runs, and batch norm's messages pass in
// another group on the same GPU. Two ranks have one order of additions.
TEST_P(NetworkBackendsTest, NcclHasTheBitsOfThreads) {
  NetworkRun run = {.deal = {3, 5},
                    .steps = std::min(2, GetParam()->steps()),
                    .bucket_bytes = 4096,
                    .tested = GetParam()};
  ClaimRecorder recorder({BitsClaimOf(*run.tested), "nccl stand-in, staged",
                          run.world_size(), "float32"});
  const auto threads = RunNetwork(run, Mutation());
  ASSERT_THAT(threads, IsOk());
  run.ranks = StagedNcclRanks(NcclOptions());
  const auto nccl = RunNetwork(run, Mutation());
  ASSERT_THAT(nccl, IsOk());
  for (int rank = 0; rank < run.world_size(); ++rank) {
    EXPECT_EQ(Fingerprint(nccl->ranks[rank]), Fingerprint(threads->ranks[rank]))
        << rank;
  }
  recorder.AddExact();
}

INSTANTIATE_TEST_SUITE_P(Networks, NetworkBackendsTest,
                         testing::Values(&TestedResNet(),
                                         &TestedTorchvisionResNet(),
                                         &TestedVit()),
                         [](const auto& info) { return info.param->name(); });

// Describes a network's tensors and operations, one per line.
std::vector<std::string> LinesOf(const Network& network) {
  std::vector<std::string> lines;
  for (const auto& tensors : {network.parameters(), network.buffers()}) {
    for (const TensorDescription& tensor : tensors) {
      lines.push_back(
          absl::StrCat(tensor.name, " ", absl::StrJoin(tensor.shape, "x")));
    }
  }
  for (const Network::Operation& operation : network.operations()) {
    const auto* convolution = std::get_if<ConvolutionOp>(&operation.kind);
    lines.push_back(absl::StrCat(
        operation.name, " of ", absl::StrJoin(operation.inputs, ","), " kind ",
        operation.kind.index(), " channels ", operation.output.c,
        convolution ? absl::StrCat(" stride ", convolution->stride) : ""));
  }
  return lines;
}

// The wrong network of a mutant and of its cause differs only in its strides.
TEST(StrideInFirstConvolutionTest, ChangesBottlenecksAlone) {
  std::set<std::string> changed;
  for (const TestedNetwork* tested : AllTestedNetworks()) {
    const auto other = WithStrideInFirstConvolution(tested->network());
    ASSERT_EQ(other != nullptr, tested == &TestedResNet50());
    if (other == nullptr) continue;
    ASSERT_THAT(other->status(), IsOk());
    const std::vector<std::string> lines = LinesOf(*other);
    const std::vector<std::string> before = LinesOf(tested->network());
    ASSERT_EQ(lines.size(), before.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i] == before[i]) continue;
      const size_t end = before[i].find(" stride ");
      ASSERT_EQ(lines[i].substr(0, end), before[i].substr(0, end));
      changed.insert(before[i].substr(0, before[i].find(' ')) +
                     lines[i].substr(end));
    }
  }
  EXPECT_THAT(
      changed,
      ElementsAre("layer2.0.conv1 stride 2", "layer2.0.conv2 stride 1",
                  "layer3.0.conv1 stride 2", "layer3.0.conv2 stride 1",
                  "layer4.0.conv1 stride 2", "layer4.0.conv2 stride 1"));
}

// One of the two shortcuts adds a value as it is, the other behind a
// convolution.
TEST(LeftOutShortcutTest, IsNamedInNetworksWithBatchNormToo) {
  const TestedNetwork& tested = TestedTorchvisionResNet();
  const NetworkRun run = {
      .deal = {kNetworkBatchSize}, .steps = 1, .tested = &tested};
  const auto trace = RunNetwork(run, Mutation());
  ASSERT_THAT(trace, IsOk());
  const StepInput in = {tested, 0, trace->first.parameters[0],
                        trace->ranks[0][0].running, trace->first.samples[0]};
  StepCauses causes(run, *trace, 0, ReferenceOf(in).want);
  const auto& operations = tested.network().operations();
  for (const auto& [name, input] :
       {std::pair("layer1.1.bn2", 1), std::pair("layer3.0.downsample.0", 0)}) {
    const auto operation =
        std::ranges::find(operations, name, &Network::Operation::name);
    ASSERT_NE(operation, operations.end());
    const std::vector<double> wrong = LeftOutGradient(
        in, {static_cast<int>(operation - operations.begin()), input});
    EXPECT_THAT(
        causes.OfGradient(tested.specs()[0],
                          std::vector<float>(wrong.begin(), wrong.end())),
        HasSubstr(absl::StrCat("over the shortcut into ", name, " is")));
  }
}

TEST(SkippedStepTest, EndsEveryRankWithinTheDeadline) {
  const NetworkRun run = {
      .deal = {8, 0}, .steps = 1, .timeout = absl::Seconds(3)};
  const absl::Time start = absl::Now();
  NetworkTrace trace;
  const auto statuses = RunNetworkRanks(run, SkipWhereEmpty(), trace);
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
  ASSERT_EQ(statuses.size(), 2);
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kDeadlineExceeded,
                                     absl::StatusCode::kUnavailable,
                                     absl::StatusCode::kFailedPrecondition))
        << status;
  }
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace lockstep::conformance
