// Tests that for four logical ranks training gives the same bits on every
// backend: threads, processes, two threads in each of two processes, and
// processes of mpirun. The bits also do not depend on the size of buckets or of
// the group's slots, nor on the run.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/mpi/run_mpi_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/reference/lenet_reference.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;
using testing::Ne;

constexpr int kRanks = 4;

// A run whose result is compared bit for bit: on BlobDataset, with
// SyncBatchNorm if the model has batch norm. Ranks get uneven shares of a step:
// 2, 2, 1, 1.
struct BitsRun {
  std::string model = "lenet";  // Or "resnet18_d2l", ...
  int64_t width = 64;           // ... whose first stage has these channels.
  int64_t bucket_bytes = 64 << 10;
  int64_t steps = 20;
};

void AppendDigests(const NamedTensors& tensors, std::string& out) {
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&out, name, " ", absl::Hex(Fnv1a(tensor.data)), "\n");
  }
}

// Trains on this rank of `group` with the product's trainer. Returns a line for
// each step, with the bits of this rank's loss, and a line for each parameter
// and buffer at the end, with a 64-bit FNV-1a digest of its bits. Two different
// tensors have equal digests with probability 2^-64. Errors: the trainer's.
absl::StatusOr<std::string> TrainedBits(Communicator& group,
                                        const BitsRun& run) {
  SetComputeThreads(1);
  const TrainerOptions options = {.batch_size = 6,  // Of all ranks.
                                  .learning_rate = 0.02f,
                                  .bucket_bytes = run.bucket_bytes};
  const MemoryDataset data = BlobDataset(run.steps * options.batch_size);
  // A different draw on each rank: the trainer gives all ranks rank 0's.
  const uint64_t seed = 1 + static_cast<uint64_t>(group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Model> model,
      run.model == "resnet18_d2l"
          ? CreateModel(absl::StrCat("resnet18_d2l:width=", run.width), seed)
          : CreateModel(run.model, seed));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, *model, data, options));
  std::unique_ptr<Communicator> batch_norm_group;
  if (model->buffers().count() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(batch_norm_group,
                              SynchroniseBatchNorm(group, *model));
  }
  std::string bits;
  const auto on_step = [&](const StepReport& report) {
    const auto loss = std::bit_cast<uint64_t>(report.shard_metrics.loss_sum);
    absl::StrAppend(&bits, "step ", report.step, " loss ", absl::Hex(loss),
                    "\n");
    return true;
  };
  LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, on_step).status());
  AppendDigests(ValueTensors(model->parameters()), bits);
  AppendDigests(BufferTensors(model->buffers()), bits);
  return bits;
}

struct Mapping {
  Backend backend = Backend::kThreads;
  int64_t bucket_bytes = 64 << 10;
  int64_t slot_bytes = 128 << 10;
};

std::string NameOf(const Mapping& mapping) {
  return absl::StrCat(Name(mapping.backend), ", buckets of ",
                      mapping.bucket_bytes, " bytes, slots of ",
                      mapping.slot_bytes);
}

// Adds in the order for a message's size: a uniform all-reduce becomes an
// ordinary one.
absl::Status AddBySize(Communicator& real, const Collective& call) {
  Collective changed = call;
  changed.uniform = false;
  return real.Run(changed);
}

// Returns the bits by rank. `collect` runs the ranks: RunRanksCollect or
// RunMpiRanksCollect. by_size: on a group that uses AddBySize.
template <typename Collect>
std::vector<std::string> BitsOf(const BitsRun& run, const Mapping& mapping,
                                bool by_size, Collect collect) {
  RunRanksOptions options;
  options.group.slot_bytes = mapping.slot_bytes;
  std::vector<std::string> bits;
  for (const absl::StatusOr<std::string>& rank : collect(
           [&](Communicator& group) -> absl::StatusOr<std::string> {
             BitsRun rank_run = run;
             rank_run.bucket_bytes = mapping.bucket_bytes;
             if (!by_size) return TrainedBits(group, rank_run);
             GroupMutant by_size_group(group, AddBySize);
             return TrainedBits(by_size_group, rank_run);
           },
           options)) {
    EXPECT_THAT(rank, IsOk()) << NameOf(mapping);
    bits.push_back(rank.value_or(""));
  }
  return bits;
}

std::vector<std::string> BitsOf(const BitsRun& run, const Mapping& mapping,
                                bool by_size = false) {
  return BitsOf(run, mapping, by_size,
                [&](const auto& train, const RunRanksOptions& options) {
                  return RunRanksCollect(mapping.backend, kRanks, train,
                                         options);
                });
}

// Buckets of one parameter, of some and of all; one mapping has small slots.
std::vector<Mapping> MappingsOf(Backend backend) {
  return {{.backend = backend, .bucket_bytes = 1},
          {.backend = backend, .bucket_bytes = 1 << 30, .slot_bytes = 4 << 10},
          {.backend = backend}};
}

// Returns a run of twenty steps. A slice trains a narrower ResNet-18 for three.
BitsRun RunOf(const std::string& model, int64_t steps = 20) {
  BitsRun run = {.model = model, .steps = steps};
  if (!IsExhaustive() && model == "resnet18_d2l") {
    run.width = 16;
    run.steps = std::min<int64_t>(3, steps);
  }
  return run;
}

std::string LastStep(const BitsRun& run) {
  return absl::StrCat("step ", run.steps - 1, " loss");
}

class BitwiseTrainingTest : public testing::TestWithParam<std::string> {};

TEST_P(BitwiseTrainingTest, IsTheSameWhateverCarriesTheRanks) {
  const BitsRun run = RunOf(GetParam());
  std::vector<std::string> want;
  for (const Backend backend :
       {Backend::kThreads, Backend::kProcesses, Backend::kMixed}) {
    ClaimRecorder recorder({"trained_bits",
                            absl::AsciiStrToLower(Name(backend)), kRanks,
                            "float32"});
    if (want.empty()) want = BitsOf(run, {});
    ASSERT_EQ(want.size(), kRanks);
    ASSERT_THAT(want[0], HasSubstr(LastStep(run)));
    for (const Mapping& mapping : MappingsOf(backend)) {
      // EXPECT_EQ would print both values in full.
      EXPECT_TRUE(BitsOf(run, mapping) == want) << NameOf(mapping);
      recorder.AddExact();
    }
  }
}

// The control: without uniform calls, the bits differ even after two steps.
TEST_P(BitwiseTrainingTest, WouldDependOnTheBucketsOtherwise) {
  const BitsRun run = RunOf(GetParam(), /*steps=*/2);
  const auto small = BitsOf(run, {.bucket_bytes = 1}, /*by_size=*/true);
  const auto large = BitsOf(run, {.bucket_bytes = 1 << 30}, /*by_size=*/true);
  ASSERT_EQ(small.size(), kRanks);
  EXPECT_THAT(small[0], HasSubstr("step 1 loss"));
  EXPECT_THAT(small, Ne(large));
}

// Under mpirun, four processes in a group of the `mpi` backend end with the
// bits of four threads.
TEST_P(BitwiseTrainingTest, UnderMpirunEndsWithTheBitsOfThreads) {
  ClaimRecorder recorder({"trained_bits", "mpi", kRanks, "float32"});
  if (!WhyNoMpirun().empty()) GTEST_SKIP() << WhyNoMpirun();
  const BitsRun run = RunOf(GetParam());
  // Buckets of some parameters, of one, of all.
  std::vector<std::vector<std::string>> runs;
  for (const int64_t bucket_bytes : {64 << 10, 1, 1 << 30}) {
    runs.push_back(BitsOf(run, {.bucket_bytes = bucket_bytes}, false,
                          [](const auto& train, const auto& options) {
                            return RunMpiRanksCollect(kRanks, train, options);
                          }));
  }
  // The threads run last, because each process of mpirun also runs the
  // statements before.
  const std::vector<std::string> want = BitsOf(run, {});
  ASSERT_EQ(want.size(), kRanks);
  ASSERT_THAT(want[0], HasSubstr(LastStep(run)));
  for (const std::vector<std::string>& got : runs) {
    EXPECT_TRUE(got == want);  // EXPECT_EQ would print both.
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BitwiseTrainingTest,
                         testing::Values("lenet", "resnet18_d2l"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::conformance
