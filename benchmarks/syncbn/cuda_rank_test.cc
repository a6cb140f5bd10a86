// Ranks that take turns of every kind on GPUs. Linked with the stand-in it
// needs no GPU; with CUDA and NCCL it runs on the GPUs there are, several ranks
// on one if need be. cuDNN has no stand-in: local is our own kernels' here.
#include "benchmarks/syncbn/cuda_rank.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/syncbn/rank_suite.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "tools/cuda/standin/control.h"
#endif

namespace lockstep::benchmarks {
namespace {

#ifdef LOCKSTEP_CUDA_STANDIN
constexpr Backend kBackend = Backend::kThreads;
#else
constexpr Backend kBackend = Backend::kProcesses;
#endif

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
          const TakeCudaTurn take,
          CreateSyncBnCudaRank(group, GroupOptions(), create_local));
      LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn, take(request));
      return Encode(turn);
    };
    std::vector<RankTurn> turns;
    for (const absl::StatusOr<std::string>& bytes :
         RunRanksCollect(kBackend, world_size, run,
                         {.group = {}, .deadline = absl::Minutes(5)})) {
      if (absl::StartsWith(bytes.status().message(), "no GPU: ") &&
          !GpusRequired()) {
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

template <typename Layer>
absl::StatusOr<std::unique_ptr<BatchNorm>> CreateA(const BatchNormOptions&,
                                                   CudaBatchNormKernels&) {
  return std::make_unique<Layer>();
}

TEST(SyncBnCudaRankTest, FindsALayerThatDoesNothingWrong) {
  const std::vector<TeamTurn> turns =
      Take(2, {LayerRequest(SyncBnSubject::kLocal)}, CreateA<Idle>);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  // y, dx, dweight and dbias, of both ranks.
  EXPECT_EQ(turns[0].wrong, 2 * (2 * 2 * 4 * 4 * 16 + 2 * 16));
}

TEST(SyncBnCudaRankTest, SaysWhatTheLibraryLacks) {
  const std::vector<TeamTurn> turns =
      Take(2,
           {LayerRequest(SyncBnSubject::kLocal),
            LayerRequest(SyncBnSubject::kOwnLocal)},
           CreateA<Lacking>);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_NE(turns[1].gpu, "");
  EXPECT_EQ(turns[0].missing, "no such type");
  EXPECT_EQ(turns[1].missing, "");
}

#ifdef LOCKSTEP_CUDA_STANDIN
TEST(SyncBnCudaRankTest, SaysWhetherRanksShareAGpu) {
  standin::SetNcclFaults({.version = 23000});  // Which lets threads share one.
  for (const int devices : {1, 2}) {
    const std::vector<TeamTurn> turns =
        Take(2, {LayerRequest(SyncBnSubject::kSync)}, CreateOwn, devices);
    EXPECT_EQ(turns[0].shared_gpu, devices == 1);
    EXPECT_EQ(turns[0].wrong, 0);
  }
  standin::SetNcclFaults({});
}
#endif

}  // namespace

std::vector<TeamTurn> TakeTurns(int world_size,
                                const std::vector<SyncBnRequest>& requests) {
  return Take(world_size, requests, CreateOwn);
}

}  // namespace lockstep::benchmarks
