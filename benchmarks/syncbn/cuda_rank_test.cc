// Ranks that take turns of every kind on GPUs. Linked with the stand-in it
// needs no GPU; with CUDA and NCCL it runs on the GPUs there are, several ranks
// on one if need be. cuDNN has no stand-in: local is our own kernels' here.
#include "benchmarks/syncbn/cuda_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/codec.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/nccl_faults.h"
#endif

namespace lockstep::benchmarks {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

constexpr int64_t kChannels = 16;
constexpr int64_t kElements = 2 * 4 * 4 * kChannels;

absl::StatusOr<std::unique_ptr<BatchNorm>> CreateOwn(
    const BatchNormOptions& options, CudaBatchNormKernels& kernels) {
  return SyncBatchNorm::CreateLocal(options, kernels);
}

// Takes the turns on ranks with that local layer, and combines each. Empty
// without a GPU, where the test is skipped. devices: of the stand-in; by
// default as many as ranks.
std::vector<TeamTurn> Take(int world_size,
                           const std::vector<SyncBnRequest>& requests,
                           const CreateLocalBatchNorm& create_local,
                           [[maybe_unused]] int devices = 0) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::SetDeviceCount(devices > 0 ? devices : world_size);
#endif
  std::vector<TeamTurn> combined;
  for (const SyncBnRequest& request : requests) {
    const auto run = [&](Communicator& group) -> absl::StatusOr<std::string> {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::unique_ptr<SyncBnCudaRank> rank,
          SyncBnCudaRank::Create(group, GroupOptions(), create_local));
      LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn, rank->Take(request));
      return Encode(turn);
    };
    std::vector<RankTurn> turns;
    for (const absl::StatusOr<std::string>& bytes :
         RunRanksCollect(kBackend, world_size, run,
                         {.group = {}, .deadline = absl::Minutes(5)})) {
      const char* const required = std::getenv("LOCKSTEP_REQUIRE_GPU");
      if (absl::StartsWith(bytes.status().message(), "no GPU: ") &&
          (required == nullptr || std::string_view(required) != "1")) {
        return {};
      }
      EXPECT_THAT(bytes, IsOk());
      turns.push_back(bytes.ok() ? *Decode<RankTurn>(*bytes) : RankTurn());
    }
    const absl::StatusOr<TeamTurn> turn = CombineTurns(turns);
    EXPECT_THAT(turn, IsOk());
    combined.push_back(turn.ok() ? *turn : TeamTurn());
  }
  return combined;
}

SyncBnRequest Request(SyncBnSubject subject, DataType type = DataType::kFloat32,
                      Layout layout = Layout::kNhwc) {
  SyncBnRequest request;
  request.subject = subject;
  request.layer = {
      .n = 2, .h = 4, .w = 4, .c = kChannels, .layout = layout, .type = type};
  request.warmup = 1;
  request.iterations = 2;
  return request;
}

TEST(SyncBnCudaRankTest, IsRightAndTimesEveryCall) {
  for (const int world_size : {1, 2, 3}) {
    const std::vector<TeamTurn> turns =
        Take(world_size,
             {Request(SyncBnSubject::kLocal), Request(SyncBnSubject::kOwnLocal),
              Request(SyncBnSubject::kSync), Request(SyncBnSubject::kSplit)},
             CreateOwn);
    if (turns.empty()) GTEST_SKIP() << "no GPU";
    for (const TeamTurn& turn : turns) {
      EXPECT_EQ(turn.wrong, 0);
      EXPECT_EQ(turn.missing, "");
      EXPECT_THAT(turn.gpu, Not(IsEmpty()));
      ASSERT_THAT(turn.forward, SizeIs(2));
      ASSERT_THAT(turn.backward, SizeIs(2));
      for (const TeamCall& call : turn.forward) EXPECT_GT(call.seconds, 0);
      for (const TeamCall& call : turn.backward) EXPECT_GT(call.seconds, 0);
    }
  }
}

TEST(SyncBnCudaRankTest, IsRightInEveryTypeAndLayout) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      const std::vector<TeamTurn> turns =
          Take(2,
               {Request(SyncBnSubject::kLocal, type, layout),
                Request(SyncBnSubject::kSync, type, layout)},
               CreateOwn);
      if (turns.empty()) GTEST_SKIP() << "no GPU";
      for (const TeamTurn& turn : turns) {
        EXPECT_EQ(turn.wrong, 0) << Name(type) << " " << Name(layout);
      }
    }
  }
}

// The control: with it outputs are as they were before the turn.
class Idle : public BatchNorm {
 public:
  int64_t SavedBytes(DataType /*type*/) const override { return 0; }
  absl::Status Forward(const Forwards& /*buffers*/) override {
    return absl::OkStatus();
  }
  absl::Status Backward(const Backwards& /*buffers*/,
                        absl::FunctionRef<void()> /*ready*/) override {
    return absl::OkStatus();
  }
};

// Lacks the type, as cuDNN may.
class Lacking : public Idle {
 public:
  absl::Status Forward(const Forwards& /*buffers*/) override {
    return absl::UnimplementedError("no such type");
  }
};

TEST(SyncBnCudaRankTest, FindsALayerThatDoesNothingWrong) {
  const std::vector<TeamTurn> turns = Take(
      2, {Request(SyncBnSubject::kLocal)},
      [](const BatchNormOptions&,
         CudaBatchNormKernels&) -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
        return std::make_unique<Idle>();
      });
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(turns[0].wrong, 2 * (2 * kElements + 2 * kChannels));
}

TEST(SyncBnCudaRankTest, SaysWhatTheLibraryLacks) {
  const std::vector<TeamTurn> turns = Take(
      2, {Request(SyncBnSubject::kLocal), Request(SyncBnSubject::kOwnLocal)},
      [](const BatchNormOptions&,
         CudaBatchNormKernels&) -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
        return std::make_unique<Lacking>();
      });
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(turns[0].missing, "no such type");
  EXPECT_EQ(turns[1].missing, "");
}

// An odd number of channels: 16 + 8 c bytes forward, rounded up to 16, and 8 c
// backward, one message each.
TEST(SyncBnCudaRankTest, SplitsSyncBatchNormAlone) {
  constexpr int64_t kOdd = 15;
  SyncBnRequest sync = Request(SyncBnSubject::kSync);
  SyncBnRequest split = Request(SyncBnSubject::kSplit);
  sync.layer.c = split.layer.c = kOdd;
  const std::vector<TeamTurn> turns = Take(2, {sync, split}, CreateOwn);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(turns[0].forward[0].messages, 0);
  EXPECT_EQ(turns[0].forward[0].Kernels(), 0);
  const auto expect_timed = [](const TeamCall& call,
                               const std::vector<TimedKernel>& kernels) {
    for (int i = 0; i < kTimedKernels; ++i) {
      const auto kernel = static_cast<TimedKernel>(i);
      const bool timed =
          std::find(kernels.begin(), kernels.end(), kernel) != kernels.end();
      EXPECT_EQ(call.kernels[static_cast<size_t>(i)] > 0, timed)
          << Name(kernel);
    }
    EXPECT_EQ(call.messages, 1);
    EXPECT_GT(call.communication, 0);
    EXPECT_GE(call.wait, 0);
    EXPECT_GE(call.other, 0);
  };
  EXPECT_EQ(turns[0].wrong + turns[1].wrong, 0);
  for (const TeamCall& call : turns[1].forward) {
    expect_timed(call, {TimedKernel::kMoments, TimedKernel::kMerge,
                        TimedKernel::kNormalize});
    EXPECT_EQ(call.message_bytes, 16 + 8 * kOdd + 8);
  }
  for (const TeamCall& call : turns[1].backward) {
    expect_timed(call,
                 {TimedKernel::kBackwardReduce, TimedKernel::kBackwardInput});
    EXPECT_EQ(call.message_bytes, 8 * kOdd);
  }
}

TEST(SyncBnCudaRankTest, TimesMessagesAndCopies) {
  const std::vector<TeamTurn> turns =
      Take(2, {Request(SyncBnSubject::kMessage), Request(SyncBnSubject::kCopy)},
           CreateOwn);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(turns[0].forward, SizeIs(2));
  EXPECT_THAT(turns[0].backward, SizeIs(2));
  EXPECT_GT(turns[0].forward[0].seconds, 0);
  EXPECT_THAT(turns[1].forward, SizeIs(2));
  EXPECT_THAT(turns[1].backward, IsEmpty());
  EXPECT_GT(turns[1].forward[0].seconds, 0);
  EXPECT_EQ(turns[1].wrong, 0);
}

#ifdef LOCKSTEP_CUDA_STANDIN
TEST(SyncBnCudaRankTest, SaysWhetherRanksShareAGpu) {
  standin::SetNcclFaults({.version = 23000});  // Which lets threads share one.
  for (const int devices : {1, 2}) {
    const std::vector<TeamTurn> turns =
        Take(2, {Request(SyncBnSubject::kSync)}, CreateOwn, devices);
    EXPECT_EQ(turns[0].shared_gpu, devices == 1);
    EXPECT_EQ(turns[0].wrong, 0);
  }
  standin::SetNcclFaults({});
}
#endif

}  // namespace
}  // namespace lockstep::benchmarks
