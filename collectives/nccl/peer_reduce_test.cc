// Compares reductions from the ranks' memory bit for bit with the reference.
// All ranks are streams of one thread on one GPU, so that the kernels run where
// there is one card, or on the stand-in.
#include "collectives/nccl/peer_reduce.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/nccl/one_gpu_windows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_NCCL_WINDOWS

namespace lockstep {
namespace {

// Streams beyond the GPU's queues (8 by default) would wait for each other.
[[maybe_unused]] const bool kHasQueues =
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0) == 0;

// The ranks' blocks wait for each other, so all of them must fit on the GPU at
// once: these calls have at most three blocks for each rank.
constexpr int64_t kWindowBytes = 64 << 10;

// The ranks of a group on the current device.
class OneGpuGroup {
 public:
  absl::Status Make(int world_size) {
    LOCKSTEP_RETURN_IF_ERROR(LoadWindowKernels());
    LOCKSTEP_ASSIGN_OR_RETURN(
        meeting_, OneGpuWindows::Create(world_size, MeetingBytes(world_size)));
    LOCKSTEP_ASSIGN_OR_RETURN(data_,
                              OneGpuWindows::Create(world_size, kWindowBytes));
    LOCKSTEP_ASSIGN_OR_RETURN(aborted_, AllocatePinnedMemory(sizeof(int)));
    auto* const aborted = reinterpret_cast<int*>(aborted_.get());
    *aborted = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      LOCKSTEP_ASSIGN_OR_RETURN(Stream stream, MakeStream());
      ranks_.push_back({.meeting = meeting_->window(rank),
                        .rank = rank,
                        .world_size = world_size,
                        .aborted = aborted});
      streams_.push_back(std::move(stream));
    }
    return absl::OkStatus();
  }

  // Reduces the ranks' inputs, at `offset` of their memory, in place and
  // `times` times. Returns what each rank's memory then holds there: after a
  // ReduceScatter, only the rank's part is the result.
  absl::StatusOr<std::vector<Bytes>> Reduce(Operation operation, DataType type,
                                            ReduceOp op,
                                            const std::vector<Bytes>& inputs,
                                            int64_t offset, int times = 1) {
    const auto bytes = static_cast<int64_t>(inputs[0].size());
    for (const WindowGroup& each : ranks_) {
      LOCKSTEP_RETURN_IF_ERROR(
          Copy(MemoryOf(each.rank) + offset,
               inputs[static_cast<size_t>(each.rank)].data(), bytes,
               cudaMemcpyHostToDevice));
    }
    for (int i = 0; i < times; ++i) {
      for (const WindowGroup& each : ranks_) {
        LOCKSTEP_RETURN_IF_ERROR(
            Enqueue(each, operation, type, op, bytes / SizeOf(type), offset));
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    std::vector<Bytes> results;
    for (const WindowGroup& each : ranks_) {
      results.emplace_back(inputs[0].size());
      LOCKSTEP_RETURN_IF_ERROR(Copy(results.back().data(),
                                    MemoryOf(each.rank) + offset, bytes,
                                    cudaMemcpyDeviceToHost));
    }
    return results;
  }

 private:
  static absl::Status Copy(void* to, const void* from, int64_t bytes,
                           cudaMemcpyKind kind) {
    return CudaStatus(cudaMemcpy(to, from, static_cast<size_t>(bytes), kind),
                      "cudaMemcpy");
  }

  std::byte* MemoryOf(int rank) const { return data_->memory(rank); }

  absl::Status Enqueue(const WindowGroup& group, Operation operation,
                       DataType type, ReduceOp op, int64_t count,
                       int64_t offset) {
    const Buffer data(MemoryOf(group.rank) + offset, count, type);
    const WindowPlace place = {data_->window(group.rank), offset};
    const int64_t part = count / group.world_size;
    const Collective call =
        operation == Operation::kAllReduce
            ? Collective::AllReduce(data, op)
            : Collective::ReduceScatter(data,
                                        data.Part(group.rank * part, part), op);
    cudaStream_t const stream = streams_[static_cast<size_t>(group.rank)].get();
    return ReduceFromWindows(call, group, place, place, stream);
  }

  std::unique_ptr<OneGpuWindows> meeting_;
  std::unique_ptr<OneGpuWindows> data_;
  PinnedMemory aborted_;
  std::vector<WindowGroup> ranks_;
  std::vector<Stream> streams_;
};

using Case = std::tuple<DataType, int>;

class PeerReduceTest : public GpuTest,
                       public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_THAT(group_.Make(world_size()), IsOk());
  }
  static DataType type() { return std::get<0>(GetParam()); }
  static int world_size() { return std::get<1>(GetParam()); }

  void CheckAllReduce(ReduceOp op, int64_t count, int64_t offset) {
    SCOPED_TRACE(absl::StrCat(Name(op), ", ", count, " at ", offset));
    const std::vector<Bytes> inputs = DrawInputs(type(), world_size(), count);
    const auto results =
        group_.Reduce(Operation::kAllReduce, type(), op, inputs, offset);
    ASSERT_THAT(results, IsOk());
    const CheckedCall call = {Operation::kAllReduce, type(), op, count};
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::optional<Bytes> want =
          ReferenceOutput(call, AdditionOrder::kRing, rank, inputs);
      EXPECT_EQ(
          FirstDifference((*results)[static_cast<size_t>(rank)], *want, type()),
          -1)
          << "rank " << rank;
    }
  }

  void CheckReduceScatter(ReduceOp op, int64_t part, int64_t offset) {
    SCOPED_TRACE(absl::StrCat("ReduceScatter, ", Name(op), ", ", part));
    const std::vector<Bytes> inputs =
        DrawInputs(type(), world_size(), part * world_size());
    const auto results =
        group_.Reduce(Operation::kReduceScatter, type(), op, inputs, offset);
    ASSERT_THAT(results, IsOk());
    const CheckedCall call = {Operation::kReduceScatter, type(), op, part};
    for (int rank = 0; rank < world_size(); ++rank) {
      const std::optional<Bytes> want =
          ReferenceOutput(call, AdditionOrder::kRing, rank, inputs);
      const Bytes& memory = (*results)[static_cast<size_t>(rank)];
      const auto begin = memory.begin() + rank * part * SizeOf(type());
      const Bytes own(begin, begin + part * SizeOf(type()));
      EXPECT_EQ(FirstDifference(own, *want, type()), -1) << "rank " << rank;
    }
  }

  OneGpuGroup group_;
};

class PeerReduceChainTest : public PeerReduceTest {};

TEST_P(PeerReduceTest, EqualsTheReferenceForEveryOperation) {
  for (const ReduceOp op : kAllReduceOps) {
    CheckAllReduce(op, 301, 0);
    CheckReduceScatter(op, 37, 0);
  }
}

TEST_P(PeerReduceTest, EqualsTheReferenceAtEverySizeAndOffset) {
  for (const int64_t count : {1, 7, 8, 17, 2053}) {
    CheckAllReduce(ReduceOp::kSum, count, 0);
  }
  for (int64_t offset = 0; offset < 16; offset += SizeOf(type())) {
    CheckAllReduce(ReduceOp::kSum, 131, offset);
    CheckReduceScatter(ReduceOp::kSum, 29, offset);
  }
}

// Every rank reads what the other ranks wrote in the reduction before, without
// a wait of the host: a barrier that lets a rank pass early gives another
// result.
TEST_P(PeerReduceChainTest, ReductionsFollowEachOther) {
  constexpr int kTimes = 10;
  std::vector<Bytes> inputs = DrawInputs(type(), world_size(), 1000);
  const auto results = group_.Reduce(Operation::kAllReduce, type(),
                                     ReduceOp::kSum, inputs, 0, kTimes);
  ASSERT_THAT(results, IsOk());
  for (int i = 0; i < kTimes; ++i) {
    const Bytes sum =
        Reference(type(), ReduceOp::kSum, FoldOrder::kChain, inputs);
    inputs.assign(inputs.size(), sum);
  }
  EXPECT_THAT(*results, testing::Each(inputs[0]));
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(Name(std::get<0>(info.param)), "P",
                      std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerReduceTest,
                         testing::Combine(testing::Values(DataType::kFloat32,
                                                          DataType::kBFloat16),
                                          testing::Values(2, 3, 4, 5, 6, 7, 8)),
                         NameOf);
// Sums of floats would overflow.
INSTANTIATE_TEST_SUITE_P(Ranks, PeerReduceChainTest,
                         testing::Combine(testing::Values(DataType::kInt64),
                                          testing::Values(2, 3, 8)),
                         NameOf);

}  // namespace
}  // namespace lockstep

#endif  // LOCKSTEP_NCCL_WINDOWS
