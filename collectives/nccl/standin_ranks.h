// Helpers for tests of the nccl backend that need the stand-in, which can
// inject faults and change the order in which streams run.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_STANDIN_RANKS_H_
#define LOCKSTEP_COLLECTIVES_NCCL_STANDIN_RANKS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "gtest/gtest.h"

namespace lockstep {

inline constexpr absl::Duration kSoon = absl::Milliseconds(300);
inline constexpr absl::Duration kLong = absl::Seconds(20);

// Removes planted faults after each test, and expects that every communicator
// has ended.
class NcclStandinTest : public testing::Test {
 protected:
  void TearDown() override;

  // Returns options with kLong and small chunks.
  static NcclOptions Options(Algorithm algorithm = Algorithm::kAuto);
};

bool AllOk(const std::vector<absl::Status>& statuses);

// Returns whether a planted bug showed as wrong data. Any other error fails the
// test.
bool ShowsInData(const std::vector<absl::Status>& statuses);

// Returns a call on float32, unless `type` says otherwise, whose result is the
// same in every order of additions.
CheckedCall ExactCall(Operation operation, int64_t count,
                      DataType type = DataType::kFloat32);

absl::Status AllReduceOnce(NcclCommunicator& communicator);

// Makes several calls of each kind: the ring's kernels and messages, and NCCL's
// own calls.
absl::Status UseEverything(NcclCommunicator& communicator);

// Calls and waits, then calls once more. The second call must fail with the
// first cause, and neither call NCCL nor wait for the device.
absl::Status FailTwice(
    NcclCommunicator& communicator,
    const std::function<absl::Status(NcclCommunicator&)>& call);

// A call on device memory.
using DataCall = std::function<absl::Status(NcclCommunicator&, Buffer)>;

// Runs `fn` on each of three ranks. Each rank's calls follow a stream of its
// own, which has the same priority as the communicator's.
using StreamFunction =
    std::function<absl::Status(NcclCommunicator&, cudaStream_t)>;
std::vector<absl::Status> RunOnStreams(const NcclOptions& options,
                                       bool own_gpus, const StreamFunction& fn);

// Sums ones that the stream has not yet written when the call is made, and
// makes the stream read the sum after the call. The group has three ranks.
absl::Status SumOfOnes(Communicator& communicator, std::byte* data,
                       int64_t count, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_STANDIN_RANKS_H_
