// Tests ranks that take turns of every kind on GPUs. Linked with the stand-in
// the test needs no GPU. With CUDA and NCCL it runs on the machine's GPUs, if
// need be with several ranks on one GPU. cuDNN has no stand-in, so local batch
// norm here is our own kernels'.
#include "benchmarks/syncbn/cuda_rank.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/syncbn/rank_suite.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"
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

// Takes the turns on ranks with the given local layer, one after the other, and
// combines each turn. Returns an empty vector without a GPU; the test is then
// skipped. devices: the number of the stand-in's devices; by default one per
// rank.
std::vector<TeamTurn> Take(int world_size,
                           const std::vector<SyncBnRequest>& requests,
                           const CreateLocalBatchNorm& create_local,
                           [[maybe_unused]] int devices = 0,
                           const TakePeerTurn& take_peer = nullptr) {
#ifdef LOCKSTEP_CUDA_STANDIN
  standin::SetDevices({.count = devices > 0 ? devices : world_size});
#endif
  const auto run = [&](Communicator& group) -> absl::StatusOr<std::string> {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const TakeCudaTurn take,
        CreateSyncBnCudaRank(group, {.group = {},
                                     .local_rank = group.rank(),
                                     .create_local = create_local,
                                     .take_peer = take_peer,
                                     .network = {{1, 16, 16, Layout::kNhwc},
                                                 {1, 32, 4, Layout::kNhwc}}}));
    std::vector<RankTurn> turns;
    for (const SyncBnRequest& request : requests) {
      LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn, take(request));
      turns.push_back(std::move(turn));
    }
    return Encode(turns);
  };
  std::vector<std::vector<RankTurn>> by_request(requests.size());
  for (const absl::StatusOr<std::string>& bytes :
       RunRanksCollect(kBackend, world_size, run)) {
    if (absl::IsNotFound(bytes.status()) && !GpusRequired()) return {};
    EXPECT_THAT(bytes, IsOk());
    std::vector<RankTurn> turns(requests.size());
    if (bytes.ok()) turns = *Decode<std::vector<RankTurn>>(*bytes);
    for (size_t i = 0; i < turns.size(); ++i) {
      by_request[i].push_back(std::move(turns[i]));
    }
  }
  std::vector<TeamTurn> combined;
  for (const std::vector<RankTurn>& turns : by_request) {
    const absl::StatusOr<TeamTurn> turn = CombineTurns(turns);
    EXPECT_THAT(turn, IsOk());
    combined.push_back(turn.ok() ? *turn : TeamTurn());
  }
  return combined;
}

// The control: a layer that does nothing, so that outputs stay as before the
// turn.
class Idle : public BatchNorm {
 public:
  int64_t SavedBytes(DataType /*type*/) const override { return 0; }
  absl::Status Forward(const ForwardBuffers& /*buffers*/) override {
    return absl::OkStatus();
  }
  absl::Status Backward(const BackwardBuffers& /*buffers*/,
                        absl::FunctionRef<void()> /*ready*/) override {
    return absl::OkStatus();
  }
};

// A layer that does not support the type, as cuDNN may not.
class UnsupportedTypeNorm : public Idle {
 public:
  absl::Status Forward(const ForwardBuffers& /*buffers*/) override {
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
           CreateA<UnsupportedTypeNorm>);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_NE(turns[1].gpu, "");
  EXPECT_EQ(turns[0].missing, "no such type");
  EXPECT_EQ(turns[1].missing, "");
}

TEST(SetsBeyondCacheTest, TouchesThreeCachesBetweenTwoUses) {
  for (const int64_t cache : {0, 1, 100, 4096}) {
    for (const int64_t touched : {1, 7, 100, 5000}) {
      const int64_t sets = SetsBeyondCache(touched, cache);
      EXPECT_GT((sets - 1) * touched, 3 * cache);
      EXPECT_LE((sets - 2) * touched, 3 * cache);  // And no more than that.
    }
  }
}

TEST(SyncBnCudaRankTest, TimesTheBatchNormsOfANetwork) {
  for (const int world_size : {1, 2}) {
    std::vector<SyncBnRequest> requests;
    for (const SyncBnSubject subject :
         {SyncBnSubject::kLocal, SyncBnSubject::kSync, SyncBnSubject::kSplit}) {
      requests.push_back({.subject = subject,
                          .network = 1,
                          .layer = {.n = 2},
                          .warmup = 1,
                          .iterations = 1});
    }
    const std::vector<TeamTurn> turns = Take(world_size, requests, CreateOwn);
    if (turns.empty()) GTEST_SKIP() << "no GPU";
    for (const TeamTurn& turn : turns) {
      EXPECT_EQ(turn.wrong, 0);
      EXPECT_TRUE(turn.backward.empty());
      ASSERT_GE(turn.forward.size(), 1u);
      EXPECT_GT(turn.forward[0].seconds, 0);
    }
    // Two layers, forward and backward. A single rank sends nothing.
    EXPECT_EQ(turns[1].forward[0].messages, 0);
    EXPECT_EQ(turns[2].forward[0].messages, world_size > 1 ? 4 : 0);
    EXPECT_GT(turns[2].forward[0].split.Kernels(), 0);
  }
}

// PyTorch's turn lies between two turns of a layer; the layer then has no GPU
// memory.
TEST(SyncBnCudaRankTest, TellsThePeerWhereItIs) {
  static int layers = 0;
  struct Counted : Idle {
    Counted() { ++layers; }
    ~Counted() override { --layers; }
  };
  const auto peer = [](const SyncBnRequest&, const std::string& where) {
    EXPECT_EQ(layers, 0);
    return RankTurn{
        .forward = {{.end = 1}}, .backward = {{.end = 2}}, .note = where};
  };
  const std::vector<TeamTurn> turns = Take(
      1,
      {LayerRequest(SyncBnSubject::kSync), LayerRequest(SyncBnSubject::kTorch),
       LayerRequest(SyncBnSubject::kSync)},
      CreateA<Counted>, 1, peer);
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(turns[1].note, testing::StartsWith("cuda 0 0 1 "));
  EXPECT_EQ(turns[0].wrong + turns[2].wrong, 0);
  const std::vector<TeamTurn> missing =
      Take(1, {LayerRequest(SyncBnSubject::kTorch)}, CreateOwn);
  EXPECT_EQ(missing[0].missing, "not asked for");
}

#ifdef LOCKSTEP_CUDA_STANDIN
// Notes where its tensors lie, and computes as our own layer.
class Noting : public BatchNorm {
 public:
  explicit Noting(std::unique_ptr<BatchNorm> inner)
      : inner_(std::move(inner)) {}
  int64_t SavedBytes(DataType type) const override {
    return inner_->SavedBytes(type);
  }
  absl::Status Forward(const ForwardBuffers& buffers) override {
    uses.push_back({buffers.x.data, 2 * buffers.x.size_bytes()});
    return inner_->Forward(buffers);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> ready) override {
    uses.push_back({buffers.x.data, 3 * buffers.x.size_bytes()});
    return inner_->Backward(buffers, ready);
  }

  // The x of every pass, and the number of bytes that the pass touched.
  static inline std::vector<std::pair<const void*, int64_t>> uses;

 private:
  std::unique_ptr<BatchNorm> inner_;
};

// The stand-in's cache is as large as a tensor here: 2 KiB.
TEST(SyncBnCudaRankTest, NoCallFindsItsTensorsInTheCache) {
  Noting::uses.clear();
  const auto noting = [](const BatchNormOptions& options,
                         CudaBatchNormKernels& kernels)
      -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
    LOCKSTEP_ASSIGN_OR_RETURN(auto own, CreateOwn(options, kernels));
    return std::make_unique<Noting>(std::move(own));
  };
  const std::vector<TeamTurn> turns =
      Take(1, {LayerRequest(SyncBnSubject::kLocal)}, noting);
  EXPECT_EQ(turns[0].wrong, 0);
  // The mean of a lap's calls. The stand-in's GPU works while calls are queued.
  ASSERT_EQ(turns[0].forward.size(), 1u);
  EXPECT_LE(turns[0].forward[0].seconds + turns[0].backward[0].seconds,
            turns[0].host_seconds.at(0));
  int reused = 0;
  for (size_t i = 0; i < Noting::uses.size(); ++i) {
    int64_t touched = 0;
    for (size_t j = i + 1; j < Noting::uses.size(); ++j) {
      if (Noting::uses[j].first == Noting::uses[i].first) {
        EXPECT_GT(touched, 3 * (2 << 10));
        ++reused;
        break;
      }
      touched += Noting::uses[j].second;
    }
  }
  EXPECT_GT(reused, 0);
}

// All work of a turn is on one stream, in order. So the result does not change
// if streams run one after the other, whichever runs first.
TEST(SyncBnCudaRankTest, NeedsNoOrderBetweenStreams) {
  for (const auto order : {standin::Order::kOldestStreamFirst,
                           standin::Order::kNewestStreamFirst}) {
    standin::SetSchedule({.order = order});
    const std::vector<TeamTurn> turns =
        Take(2,
             {LayerRequest(SyncBnSubject::kLocal),
              LayerRequest(SyncBnSubject::kSync),
              LayerRequest(SyncBnSubject::kMessage),
              LayerRequest(SyncBnSubject::kCopy)},
             CreateOwn);
    standin::SetSchedule({});
    for (const TeamTurn& turn : turns) EXPECT_EQ(turn.wrong, 0);
  }
}

// The local ranks are 3 and 4, which choose the GPU. The host waits as often
// for many calls as for few: when all calls are queued, and to read their
// outputs.
TEST(SyncBnCudaRankTest, TheHostWaitsForTurnsAndNotForCalls) {
  const auto run = [](Communicator& group) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const TakeCudaTurn take,
        CreateSyncBnCudaRank(group, {.group = {},
                                     .local_rank = group.rank() + 3,
                                     .create_local = CreateOwn}));
    int device = 0;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 1 - group.rank());
    for (const SyncBnSubject subject :
         {SyncBnSubject::kMessage, SyncBnSubject::kCopy}) {
      SyncBnRequest request = LayerRequest(subject);
      int64_t waits[2];
      for (int64_t& count : waits) {
        const int64_t before = standin::CountsOfThisThread().host_waits;
        LOCKSTEP_RETURN_IF_ERROR(take(request).status());
        count = standin::CountsOfThisThread().host_waits - before;
        request.iterations *= 10;
      }
      EXPECT_EQ(waits[0], waits[1]) << Name(subject);
    }
    return absl::OkStatus();
  };
  standin::SetDevices({.count = 2});
  for (const absl::Status& status : RunRanks(Backend::kThreads, 2, run)) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST(SyncBnCudaRankTest, SaysWhetherRanksShareAGpu) {
  standin::SetNcclFaults({.version = 23000});  // Lets threads share one.
  for (const int devices : {1, 2}) {
    ASSERT_EQ(unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT"), 0);
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
