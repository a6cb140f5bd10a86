// Plants faults in groups and asks the suite.
#include "conformance/collectives/plant_fault.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/faulty_communicator.h"

namespace lockstep {

std::vector<CollectiveBug> AllCollectiveBugs() {
  return {
      {CollectiveFault::kSwappedChunks,
       "the first and the last element change places", "Output",
       "as if the first and the last element had changed places"},
      {CollectiveFault::kLostTail, "the last element is not written", "Output",
       "as if the last element had not been written"},
      {CollectiveFault::kWrongRoot,
       "the rank after the root takes its part",
       "Output",
       "were the root",
       {"Beside"}},
      {CollectiveFault::kDoubleCount, "rank 0's input is reduced twice",
       "Output", "as if rank 0's input were taken twice"},
      {CollectiveFault::kStaleBuffer, "the last rank keeps what it had",
       "Output", "as if nothing had been written"},
      {CollectiveFault::kOneTooMany, "one byte after the output is written",
       "Beside", " beside the "},
      {CollectiveFault::kWritesInput, "the first byte of the input changes",
       "Input", "the input was written"},
      {CollectiveFault::kOrderOfArrival, "the ranks are added in another order",
       "Output", "as if the ranks were added in the order"},
      {CollectiveFault::kUnscaledAverage, "an average is the sum", "Output",
       "as if it were the sum, not the average"},
      {CollectiveFault::kOrderBySize,
       "a uniform call adds in the order of its size", "Output",
       "as if it were added in the order of its size"},
  };
}

absl::StatusOr<std::vector<std::vector<absl::Status>>> CheckFaulty(
    CollectiveFault fault, std::span<const CollectiveCase> cases) {
  std::vector<std::vector<absl::Status>> by_case(
      cases.size(), std::vector<absl::Status>(kFaultyRanks));
  const auto statuses = RunRanks(
      Backend::kThreads, kFaultyRanks, [&](Communicator& real) -> absl::Status {
        FaultyCommunicator faulty(real, fault);
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<CollectiveChecker> checker,
            CollectiveChecker::Create(faulty, Memory::kOrdinary));
        for (size_t i = 0; i < cases.size(); ++i) {
          absl::Status& status = by_case[i][static_cast<size_t>(real.rank())];
          status = checker->Check(cases[i]);
          if (!status.ok() && status.code() != absl::StatusCode::kDataLoss) {
            return status;
          }
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) LOCKSTEP_RETURN_IF_ERROR(status);
  return by_case;
}

}  // namespace lockstep
