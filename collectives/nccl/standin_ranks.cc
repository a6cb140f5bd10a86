#include "collectives/nccl/standin_ranks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {

void NcclStandinTest::TearDown() {
  standin::SetNcclFaults({});
  standin::SetSchedule({});
  standin::SetDevices({.count = standin::CurrentDevices().count});
  EXPECT_EQ(standin::LiveNcclCommunicators(), 0);
}

NcclOptions NcclStandinTest::Options(Algorithm algorithm) {
  NcclOptions options;
  options.group.algorithm = algorithm;
  options.group.timeout = kLong;
  options.chunk_bytes = 256;
  return options;
}

bool AllOk(const std::vector<absl::Status>& statuses) {
  return std::ranges::all_of(statuses, &absl::Status::ok);
}

bool ShowsInData(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
  return !AllOk(statuses);
}

CheckedCall ExactCall(Operation operation, int64_t count, DataType type) {
  return {.operation = operation,
          .type = type,
          .count = count,
          .input = CallInput::kExact};
}

absl::Status AllReduceOnce(NcclCommunicator& communicator) {
  return CheckOnDevice(communicator, {ExactCall(Operation::kAllReduce, 1000)});
}

absl::Status UseEverything(NcclCommunicator& communicator) {
  std::vector<CheckedCall> calls;
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduce, Operation::kReduceScatter,
        Operation::kAllGather, Operation::kBroadcast}) {
    for (const bool in_place : {false, true}) {
      calls.push_back(ExactCall(operation, 1000, DataType::kFloat16));
      calls.back().in_place = in_place;
    }
  }
  return CheckOnDevice(communicator, calls);
}

absl::Status FailTwice(
    NcclCommunicator& communicator,
    const std::function<absl::Status(NcclCommunicator&)>& call) {
  absl::Status first = call(communicator);
  if (first.ok()) first = communicator.Wait();
  if (first.ok()) return absl::InternalError("did not fail");
  const standin::CallCounts before = standin::CountsOfThisThread();
  const absl::Status second = communicator.Barrier();
  const standin::CallCounts after = standin::CountsOfThisThread();
  if (!absl::IsFailedPrecondition(second) ||
      !absl::StrContains(second.message(), first.message())) {
    return absl::InternalError(
        absl::StrCat("the second failure was ", second.ToString()));
  }
  if (after.groups != before.groups || after.host_waits != before.host_waits) {
    return absl::InternalError("the second call used the device");
  }
  return first;
}

std::vector<absl::Status> RunOnStreams(const NcclOptions& options,
                                       bool own_gpus,
                                       const StreamFunction& fn) {
  constexpr int kRanks = 3;
  standin::Devices devices = standin::CurrentDevices();
  devices.count = std::max(devices.count, kRanks);
  standin::SetDevices(devices);
  return RunRanks(
      Backend::kThreads, kRanks, [&](Communicator& control) -> absl::Status {
        NcclOptions own = options;
        own.device = own_gpus ? control.rank() : 0;
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaSetDevice(own.device), "cudaSetDevice"));
        LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeUrgentStream());
        own.stream = stream.get();
        LOCKSTEP_ASSIGN_OR_RETURN(auto owned, control.Split(0, 0));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const auto communicator,
            NcclCommunicator::Create(std::move(owned), own));
        return fn(*communicator, stream.get());
      });
}

absl::Status SumOfOnes(Communicator& communicator, std::byte* data,
                       int64_t count, cudaStream_t stream) {
  const auto size = static_cast<size_t>(count);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto copy, MakeDeviceMemory(Bytes(size)));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(data, 1, size, stream), "cudaMemsetAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllReduce({data, count, DataType::kUInt8}));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(copy->data(), data, size,
                                 cudaMemcpyDeviceToDevice, stream),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  // If a wait was dropped, the call may still be in progress.
  LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
  return copy->Holds(Bytes(size, std::byte{3}))
             ? absl::OkStatus()
             : absl::DataLossError("not the sum of three ones");
}

}  // namespace lockstep
