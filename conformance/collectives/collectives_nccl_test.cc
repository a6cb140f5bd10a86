// collectives_test for the `nccl` backend, on the stand-in for CUDA and NCCL:
// its device memory is the host's, so the same checker reads and writes it.
//
// By the project's own ring, whose order of additions is stated; what NCCL's
// own calls add, in an order of its own, //collectives/nccl checks.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;

absl::StatusOr<std::string> CheckAll(Communicator& communicator) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CollectiveChecker check,
                            MakeCollectiveChecker(communicator, Memory::kGroup,
                                                  AdditionOrder::kRing));
  std::vector<CollectiveCase> cases =
      SomeCollectiveCases(communicator.world_size(), /*salt=*/1);
  for (CollectiveCase& call : cases) {
    // The kernels want elements that are aligned.
    if (Reduces(call.operation)) call.misalignment *= SizeOf(call.type);
  }
  return CheckCollectives(check, cases);
}

NcclOptions OurRing() {
  NcclOptions options;
  options.group.algorithm = Algorithm::kRing;
  options.chunk_bytes = 512;  // Several windows of chunks in the larger cases.
  return options;
}

class CollectivesNcclTest : public testing::TestWithParam<int> {};

TEST_P(CollectivesNcclTest, GiveWhatTheReferenceGives) {
  CollectiveClaims claims("nccl stand-in", GetParam());
  std::vector<absl::StatusOr<std::string>> asked(
      static_cast<size_t>(GetParam()), absl::UnknownError("no answer"));
  const auto statuses = RunNcclRanks(
      GetParam(), OurRing(), [&asked](NcclCommunicator& communicator) {
        auto& own = asked[static_cast<size_t>(communicator.rank())];
        own = CheckAll(communicator);
        return own.status();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  claims.Add(asked);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, CollectivesNcclTest,
                         testing::Values(1, 2, 3, 5, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// The control.
TEST(CollectivesNcclMutantTest, ALostTailIsRejected) {
  const auto statuses =
      RunNcclRanks(2, OurRing(), [](NcclCommunicator& communicator) {
        return CheckAll(*LoseTail(communicator)).status();
      });
  EXPECT_THAT(statuses, Contains(StatusIs(absl::StatusCode::kDataLoss,
                                          HasSubstr("AllReduce"))));
}

}  // namespace
}  // namespace lockstep::conformance
