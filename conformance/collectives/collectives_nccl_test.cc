// Runs collectives_test for the `nccl` backend, on the stand-in for CUDA and
// NCCL and on GPUs. The checker and the mutants are the same. The group works
// on the device copy of their memory (device_mirror.h).
//
// The group uses the project's own ring, whose order of additions is specified.
// //collectives/nccl checks NCCL's own calls, which add in another order. A
// test's ranks live through all of its cases.
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_mutants.h"
#include "conformance/device_mirror.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// The way in which a call reaches NCCL. kRing is the project's ring. kDirect is
// the window variant if ranks can reach each other's memory, otherwise the
// ring. kStaged takes host memory of any alignment through the ring
// (StagedCommunicator).
enum class NcclPath { kRing, kDirect, kStaged };

RankRunner RanksBy(NcclPath way) {
  NcclOptions options;
  options.group.algorithm =
      way == NcclPath::kDirect ? Algorithm::kDirect : Algorithm::kRing;
  // The larger cases have several windows of chunks. Messages on GPUs take
  // long, so their chunks are larger.
  options.chunk_bytes = kOnStandin ? 512 : 4096;
  return way == NcclPath::kStaged ? StagedNcclRanks(options)
                                  : MirroredNcclRanks(options);
}

using Group = std::tuple<NcclPath, int>;  // The way and the world size.

class CollectivesNcclTest : public testing::TestWithParam<Group> {};

TEST_P(CollectivesNcclTest, GiveWhatTheReferenceGives) {
  const auto [way, world_size] = GetParam();
  const bool staged = way == NcclPath::kStaged;
  CollectiveClaims claims(
      absl::StrCat(NcclBackendName(world_size), staged ? ", staged" : ""),
      world_size);
  if (!HasNcclRanks()) return;
  std::vector<CollectiveCase> cases =
      SomeCollectiveCases(world_size, static_cast<uint64_t>(way));
  for (CollectiveCase& call : cases) call = staged ? call : Aligned(call);
  const auto asked = RanksBy(way)(
      world_size, [&](Communicator& group) -> absl::StatusOr<std::string> {
        LOCKSTEP_ASSIGN_OR_RETURN(
            const CollectiveChecker check,
            MakeCollectiveChecker(group,
                                  staged ? Memory::kOrdinary : Memory::kGroup,
                                  AdditionOrder::kRing));
        return CheckCollectives(check, cases);
      });
  if (!kOnStandin && SkippedAsNotReached(asked[0].status())) return;
  EXPECT_THAT(asked, Each(IsOk()));
  claims.Add(asked);
}

std::vector<Group> Groups() {
  std::vector<Group> groups;
  for (const int world_size : NcclWorldSizes({1, 2, 3, 5, 8})) {
    groups.push_back({NcclPath::kRing, world_size});
  }
  for (const NcclPath way : {NcclPath::kDirect, NcclPath::kStaged}) {
    for (const int world_size : NcclWorldSizes({3})) {
      groups.push_back({way, world_size});
    }
  }
  return groups;
}

std::string NameOf(const testing::TestParamInfo<Group>& info) {
  constexpr const char* kNames[] = {"Ring", "Direct", "Staged"};
  const auto [way, world_size] = info.param;
  return absl::StrCat(kNames[static_cast<int>(way)], "P", world_size);
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesNcclTest,
                         testing::ValuesIn(Groups()), NameOf);

// The controls, around the group that the test above checks.
class CollectivesNcclMutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(CollectivesNcclMutantTest, IsRejected) {
  if (!HasNcclRanks()) return;
  const Mutant& mutant = GetParam();
  // On the stand-in, runs only the first case in which the mutant must show.
  if (kOnStandin && !IsExhaustive()) {
    EXPECT_THAT(PlantAndExpectCaught(mutant), IsOk());
    return;
  }
  const auto cases = mutant.plant_everywhere();
  ASSERT_THAT(cases, IsOk());
  EXPECT_GT(*cases, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Mutants, CollectivesNcclMutantTest,
    testing::ValuesIn(CollectiveMutants({.run = RanksBy(NcclPath::kRing),
                                         .memory = Memory::kGroup,
                                         .order = AdditionOrder::kRing,
                                         .aligned = true})
                          .mutants),
    [](const auto& info) { return info.param.name; });

// The mirror shows what the device writes beside an output.
TEST(DeviceMirrorTest, ShowsWhatTheDeviceWroteBesideAnOutput) {
  if (!HasNcclRanks()) return;
  const auto ranks = RunNcclRanksCollect(
      2, NcclOptions(),
      [](NcclCommunicator& group) -> absl::StatusOr<std::string> {
        GroupMutant device(
            group,
            [](Communicator& real, const Collective& call) -> absl::Status {
              LOCKSTEP_RETURN_IF_ERROR(real.Run(call));
              return CudaStatus(
                  cudaMemset(call.output.bytes() + call.output.size_bytes(), 0,
                             2),
                  "cudaMemset");
            });
        MirroredCommunicator mirrored(device);
        LOCKSTEP_ASSIGN_OR_RETURN(
            const CollectiveChecker check,
            MakeCollectiveChecker(mirrored, Memory::kGroup));
        LOCKSTEP_RETURN_IF_ERROR(check({.count = 3}));
        return "";
      });
  EXPECT_THAT(ranks, Each(StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr("Beside: AllReduce"),
                                         HasSubstr("beside the output")))));
}

TEST(StagedCommunicatorTest, TellsEveryRankOfACallThatOneCannotMake) {
  if (!HasNcclRanks()) return;
  const auto expect = [](const std::string& said, auto call) {
    const auto ranks = StagedNcclRanks(NcclOptions())(
        3, [&](Communicator& group) -> absl::StatusOr<std::string> {
          LOCKSTEP_RETURN_IF_ERROR(call(group, group.rank() == 1));
          return "";
        });
    EXPECT_THAT(ranks, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 1 called " + said))));
  };
  expect("AllGather", [](Communicator& group, bool wrong) {
    std::vector<float> input(1), output(wrong ? 2 : 3);
    return group.AllGather(input, output);
  });
  expect("Allocate(-1 bytes)", [](Communicator& group, bool wrong) {
    return group.Allocate(wrong ? -1 : 8).status();
  });
  expect("Allocate(9 bytes)", [](Communicator& group, bool wrong) {
    return group.Allocate(wrong ? 9 : 8).status();
  });
}

}  // namespace
}  // namespace lockstep::conformance
