// Tests runs on GPUs, on the stand-in: ranks that are threads of this process,
// and the command in the build that has the stand-in.
#include "models/train/device.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/run_command.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/scaling/rank.h"
#include "benchmarks/scaling/turn.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/test_inputs.h"
#include "models/train/trainer.h"
#include "nlohmann/json.hpp"
#include "standin/control.h"

namespace lockstep::benchmarks {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr int64_t kImages = 40, kBatch = 16;
constexpr char kModel[] = "lenet";

// Each epoch has two full batches and a smaller one. Only three of the ten
// classes occur, which the network learns within a few steps.
MemoryDataset MakeImages() {
  std::vector<uint8_t> images, labels;
  for (int64_t i = 0; i < kImages * 16 * 16; ++i) {
    images.push_back(static_cast<uint8_t>(i * 7919 % 251));
  }
  for (int64_t i = 0; i < kImages; ++i) {
    labels.push_back(static_cast<uint8_t>(i % 3));
  }
  return MemoryDataset({16, 16, 1}, 10, std::move(images), std::move(labels));
}

RunSpec SpecOf(int world_size, RankKind ranks = RankKind::kThreads) {
  return {.configuration = {.world_size = world_size,
                            .global_batch = kBatch,
                            .ranks = ranks,
                            .device = ComputeDevice::kCuda},
          .model = kModel,
          .learning_rate = 0.5,
          .steps = 4,
          .warmup_steps = 1};
}

// Runs `spec` on the stand-in's GPUs, of which there are `gpus`. Returns the
// results by rank.
std::vector<RankResult> RunOnGpus(const RunSpec& spec, int gpus) {
  standin::SetDevices({.count = gpus});
  const MemoryDataset data = MakeImages();
  std::vector<RankResult> results(spec.configuration.world_size);
  const auto statuses = RunRanks(
      Backend::kThreads, spec.configuration.world_size,
      [&](Communicator& group) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(
            results[group.rank()],
            RunRank(group, /*local_rank=*/group.rank(), data, {}, spec));
        return absl::OkStatus();
      });
  standin::SetDevices({});
  EXPECT_THAT(statuses, Each(IsOk()));
  return results;
}

// The losses of one rank on the CPU in the same steps.
struct CpuLosses {
  double all = 0, last = 0;  // The mean over all steps, over the last step.
};

CpuLosses LossesOnCpu(const RunSpec& spec) {
  const MemoryDataset data = MakeImages();
  Metrics all, last;
  const auto statuses =
      RunRanks(Backend::kThreads, 1, [&](Communicator& group) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const NetworkInput input, InputOf(data, {}));
        LOCKSTEP_ASSIGN_OR_RETURN(Network network,
                                  CreateNetwork(kModel, input));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<CpuReplica> model,
            CreateCpuReplica(std::move(network), {.seed = 0}));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<Trainer> trainer,
            Trainer::Create(group, *model, data,
                            {.batch_size = kBatch, .learning_rate = 0.5f}));
        int full_steps = 0;
        const auto done = [&] {
          return full_steps == spec.warmup_steps + spec.steps;
        };
        for (int64_t epoch = 0; !done(); ++epoch) {
          const auto on_step = [&](const StepReport& report) {
            full_steps += report.global_samples == kBatch ? 1 : 0;
            all += report.shard_metrics;
            last = report.shard_metrics;
            return !done();
          };
          LOCKSTEP_RETURN_IF_ERROR(
              trainer->TrainEpoch(epoch, on_step).status());
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return {.all = all.mean_loss(), .last = last.mean_loss()};
}

// Rounding changes a loss by less than 1e-4 of it, other steps by more than
// 1e-3.
TEST(RankOnGpuTest, TakesTheCpusStepsAndTimesEach) {
  const CpuLosses cpu = LossesOnCpu(SpecOf(1));
  EXPECT_GT(std::abs(cpu.all - cpu.last), 1e-3 * cpu.all);
  for (const int world_size : {1, 2}) {
    const RunSpec spec = SpecOf(world_size);
    const std::vector<RankResult> ranks = RunOnGpus(spec, world_size);
    for (const RankResult& rank : ranks) {
      EXPECT_NEAR(rank.loss, cpu.all, 1e-4 * cpu.all) << world_size;
      EXPECT_EQ(rank.gpu, "stand-in");
      EXPECT_EQ(rank.shares_gpu, 0);
      EXPECT_EQ(rank.hosts_sum, "");
      EXPECT_EQ(rank.convolution, "cudnn");
      EXPECT_TRUE(rank.same_parameters);
      ASSERT_THAT(rank.steps, SizeIs(4));
      for (const RankStep& step : rank.steps) {
        EXPECT_GT(step.parts.compute, 0);
        EXPECT_GE(step.parts.exposed_communication, 0);
        EXPECT_GT(step.parts.data_wait, 0);
        EXPECT_EQ(step.seconds, step.parts.Sum());
      }
    }
    const absl::StatusOr<RoundSample> sample = CombineRanks(spec, ranks);
    ASSERT_THAT(sample, IsOk());
    EXPECT_THAT(sample->gpus, testing::ElementsAre("stand-in"));
    EXPECT_FALSE(sample->shared_gpu);
    EXPECT_EQ(sample->kept_waiting, 0);
  }
}

// NCCL of the stand-in does not support ranks that share a GPU, so the hosts
// sum. Rank 1 has a GPU of its own.
TEST(RankOnGpuTest, SaysWhichRanksShareAGpu) {
  const RunSpec spec = SpecOf(3);
  const CpuLosses cpu = LossesOnCpu(spec);
  const std::vector<RankResult> ranks = RunOnGpus(spec, /*gpus=*/2);
  std::vector<int> shares;
  for (const RankResult& rank : ranks) {
    shares.push_back(rank.shares_gpu);
    EXPECT_NE(rank.hosts_sum, "");
    EXPECT_TRUE(rank.same_parameters);
    EXPECT_NEAR(rank.loss, cpu.last, 1e-4 * cpu.last);
  }
  EXPECT_THAT(shares, testing::ElementsAre(1, 0, 1));
  const absl::StatusOr<RoundSample> sample = CombineRanks(spec, ranks);
  ASSERT_THAT(sample, IsOk());
  EXPECT_TRUE(sample->shared_gpu);
  EXPECT_EQ(sample->hosts_sum, ranks[0].hosts_sum);
}

// Each rank of kApart trains on eight images, as one rank alone does.
TEST(RankOnGpuTest, LeavesRanksApartAlone) {
  RunSpec alone = SpecOf(1);
  alone.configuration.global_batch = kBatch / 2;
  const double loss = RunOnGpus(alone, /*gpus=*/1)[0].loss;
  for (const RankResult& rank :
       RunOnGpus(SpecOf(2, RankKind::kApart), /*gpus=*/2)) {
    EXPECT_EQ(rank.loss, loss);
    EXPECT_TRUE(rank.same_parameters);
    EXPECT_THAT(rank.steps, SizeIs(4));
  }
}

// Tests of the command.

constexpr char kWithStandin[] = "benchmarks/scaling/scaling_standin";
constexpr char kOfUsers[] = "benchmarks/scaling/scaling";
constexpr char kSmall[] =
    "--model=lenet_bn --dataset=synthetic --image_size=16 --train_samples=64 "
    "--mode=weak --batch_size=8 --steps=3 --rounds=1 --warmup_steps=1 ";

CommandOutcome RunScaling(absl::string_view program, absl::string_view flags) {
  const std::string folder = TestPath("");
  std::filesystem::create_directories(folder);
  return RunCommand(absl::StrCat("env LOCKSTEP_STANDIN_GPUS=3 ", program, " ",
                                 kSmall, " --output_dir=", folder, " ", flags),
                    /*deadline_seconds=*/240);
}

// Returns the report after checking what runs on GPUs have in common.
nlohmann::json ReportOf(const CommandOutcome& outcome) {
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("one GPU each (stand-in)"),
                                    Not(HasSubstr("thread each")),
                                    Not(HasSubstr("DistributedDataParallel"))));
  nlohmann::json json = ReadJson(TestPath("") + "/scaling.json");
  EXPECT_EQ(json["gpu"], "stand-in");
  EXPECT_EQ(json["settings"]["device"], "cuda");
  EXPECT_FALSE(json.contains("bars"));
  for (const auto& at : json["modes"][0]["configurations"]) {
    EXPECT_EQ(at["convolution"], "cudnn");
    EXPECT_EQ(at["step_seconds"]["steps"], 3);
    EXPECT_GT(at["images_per_second"]["median"], 0);
    EXPECT_GT(at["parts_seconds"]["compute"], 0);
    EXPECT_GT(at["parts_seconds"]["data_wait"], 0);
  }
  return json;
}

// Without --world_sizes, the largest world size is the number of GPUs.
TEST(ScalingOnGpusTest, ReportsEachNumberOfGpus) {
  const CommandOutcome outcome =
      RunScaling(kWithStandin, "--device=cuda --backend=threads");
  const nlohmann::json json = ReportOf(outcome);
  const auto& configurations = json["modes"][0]["configurations"];
  EXPECT_EQ(json["settings"]["world_sizes"], nlohmann::json({1, 2, 3}));
  ASSERT_THAT(configurations, SizeIs(3));
  for (const int i : {0, 1, 2}) {
    EXPECT_EQ(configurations[i]["world_size"], i + 1);
    EXPECT_EQ(configurations[i]["shared_gpu"], false);
    // By the GPU's clock the parts are all of a rank's step. Ranks differ.
    EXPECT_GE(configurations[i]["parts_seconds"]["rest"], -1e-9);
  }
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(" s at 1 GPU, "), HasSubstr(" s at 3 GPUs"),
                    Not(HasSubstr("take turns")),
                    HasSubstr("Memory and power are not known: ")));
}

// The tests' management library says 3 GiB and 250 W of every GPU.
TEST(ScalingOnGpusTest, ReportsMemoryAndPower) {
  const CommandOutcome outcome = RunScaling(
      absl::StrCat("LD_LIBRARY_PATH=benchmarks/harness/testing ", kWithStandin),
      "--device=cuda --backend=threads --nproc=1 --batch_size=16 --rounds=2 "
      "--steps=100");
  const nlohmann::json json = ReadJson(TestPath("") + "/scaling.json");
  const auto& at = json["modes"][0]["configurations"][0];
  EXPECT_EQ(at["gpu_memory_bytes"], int64_t{3} << 30);
  ASSERT_FALSE(at["gpu_watts"].is_null()) << outcome.output;
  EXPECT_NEAR(at["gpu_watts"].get<double>(), 250, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("Memory in use on a GPU, and its mean power: 3.00 GiB, "
                        "250 W at 1 GPU"));
}

TEST(ScalingOnGpusTest, StartsAProcessAsARank) {
  ReportOf(RunScaling(kWithStandin, "--device=auto --nproc=1"));
}

TEST(ScalingOnGpusTest, TakesAllGpusForMinusOne) {
  const nlohmann::json json = ReportOf(
      RunScaling(kWithStandin, "--device=cuda --backend=threads --nproc=-1"));
  EXPECT_EQ(json["settings"]["world_sizes"], nlohmann::json({3}));
}

TEST(ScalingOnGpusTest, MarksRanksThatShareAGpu) {
  const CommandOutcome outcome =
      RunScaling(kWithStandin, "--device=cuda --backend=threads --nproc=4");
  const nlohmann::json json = ReportOf(outcome);
  EXPECT_EQ(json["modes"][0]["configurations"][0]["shared_gpu"], true);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("warning: 4 ranks on 3 GPUs take turns"),
                    HasSubstr("4*"), HasSubstr("* ranks share a GPU"),
                    HasSubstr("At 4 ranks the hosts sum the gradients: ")));
}

TEST(ScalingOnGpusTest, NamesWhatCannotBe) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--device=tpu", "--device=tpu: must be cpu, cuda or auto"},
      {"--nproc=-1", "--world_sizes: '-1' is not a number"},
      {"--device=cuda --type=bfloat16",
       "--device=cuda: a GPU computes float32"},
      {"--device=cuda --backend=mpi",
       "--device=cuda: a GPU has ranks that are processes or threads, not "
       "mpi"},
      {"--device=cuda --peers=torch", "--device=cuda: a GPU has no peer: "},
      {"--device=cuda --backend=ddp", "--device=cuda: a GPU has no peer: "}};
  for (const auto& [flags, message] : cases) {
    const CommandOutcome outcome = RunScaling(kWithStandin, flags);
    EXPECT_EQ(outcome.exit_status, 2) << flags;
    EXPECT_THAT(outcome.output, testing::StartsWith("scaling: " + message));
  }
  if (HasGpu()) return;
  const CommandOutcome refused = RunScaling(kOfUsers, "--device=cuda");
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_THAT(refused.output, testing::StartsWith("scaling: --device=cuda: "));
}

// The stand-in's NCCL joins threads only. The rank that made NCCL's id waits
// for the other rank, whose error must end it.
TEST(ScalingOnGpusTest, SaysWhyProcessesCannotJoinOnTheStandin) {
  const CommandOutcome outcome =
      RunScaling(kWithStandin, "--device=cuda --nproc=2");
  EXPECT_NE(outcome.exit_status, 0);
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("the stand-in's ranks must be threads of one process"),
            Not(HasSubstr("not finished after"))));
}

// On a host without GPUs the CPU computes, and the command says why.
TEST(ScalingOnGpusTest, FallsBackToTheCpu) {
  if (HasGpu()) GTEST_SKIP() << "this host has a GPU";
  const CommandOutcome outcome =
      RunScaling(kOfUsers, "--device=auto --nproc=1");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("scaling: --device=auto: the CPU computes: "),
                    HasSubstr("one thread each")));
  const nlohmann::json json = ReadJson(TestPath("") + "/scaling.json");
  EXPECT_EQ(json["settings"]["device"], "cpu");
  EXPECT_TRUE(json["gpu"].is_null());
}

}  // namespace
}  // namespace lockstep::benchmarks
