// Every operation x type x reduction x world size x backend, or a slice of
// these (slice.h), returns the reference's bits. A mutated group does not.
// Diagnoses of wrong outputs name their cause.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/mpi/run_mpi_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_causes.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_mutants.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::Each;

constexpr int kWorldSizes[] = {1, 2, 3, 5, 8};

struct Group {
  Backend backend;
  Algorithm algorithm;
  Memory memory;
  int world_size;
  int64_t slot_bytes;
};

std::string NameOf(const Group& group) {
  return absl::StrCat(Name(group.backend), "_", Name(group.algorithm), "_",
                      group.memory == Memory::kGroup ? "group" : "ordinary",
                      "_slots", group.slot_bytes, "_P", group.world_size);
}

// Returns a salt that makes the groups' slices differ.
uint64_t SaltOf(const Group& group) {
  return static_cast<uint64_t>(group.backend) * 64 +
         static_cast<uint64_t>(group.algorithm) * 8 +
         static_cast<uint64_t>(group.memory);
}

std::vector<Group> Groups() {
  std::vector<Group> groups;
  for (const int world_size : kWorldSizes) {
    for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree}) {
        groups.push_back(
            {backend, algorithm, Memory::kOrdinary, world_size, 1024});
      }
      for (const Memory memory : {Memory::kOrdinary, Memory::kGroup}) {
        groups.push_back(
            {backend, Algorithm::kAuto, memory, world_size, 128 << 10});
      }
    }
    groups.push_back({Backend::kMixed, Algorithm::kAuto, Memory::kGroup,
                      world_size, 128 << 10});
    // Small slots. Their number is the same as elsewhere.
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kTree}) {
      groups.push_back(
          {Backend::kTcp, algorithm, Memory::kOrdinary, world_size, 1024});
    }
  }
  return groups;
}

class CollectivesTest : public testing::TestWithParam<Group> {};

TEST_P(CollectivesTest, GiveWhatTheReferenceGives) {
  const Group& group = GetParam();
  if (!IsBuilt(group.backend)) GTEST_SKIP() << "built without OpenSSL";
  CollectiveClaims claims(absl::AsciiStrToLower(Name(group.backend)),
                          group.world_size);
  RunRanksOptions options;
  options.group.algorithm = group.algorithm;
  options.group.slot_bytes = group.slot_bytes;
  const auto asked = RunRanksCollect(
      group.backend, group.world_size,
      [&](Communicator& communicator) {
        return CheckCollectives(communicator, group.memory, SaltOf(group));
      },
      options);
  EXPECT_THAT(asked, Each(IsOk()));
  claims.Add(asked);
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesTest, testing::ValuesIn(Groups()),
                         [](const auto& info) { return NameOf(info.param); });

class CollectiveMutantTest : public testing::TestWithParam<Mutant> {};

// In every case in which the mutant must show, some rank rejects it.
TEST_P(CollectiveMutantTest, IsRejected) {
  const auto cases = GetParam().plant_everywhere();
  ASSERT_THAT(cases, IsOk());
  EXPECT_GT(*cases, 0);
}

INSTANTIATE_TEST_SUITE_P(Mutants, CollectiveMutantTest,
                         testing::ValuesIn(CollectiveMutants().mutants),
                         [](const auto& info) { return info.param.name; });

// Returns processes that reduce directly from each other's memory.
CollectiveRanks CollectivesInGroupMemory() {
  return {.run =
              [](int world_size, const RankFunction& fn) {
                return RunRanksCollect(Backend::kProcesses, world_size, fn);
              },
          .memory = Memory::kGroup};
}

INSTANTIATE_TEST_SUITE_P(
    GroupMemory, CollectiveMutantTest,
    testing::ValuesIn(CollectiveMutants(CollectivesInGroupMemory()).mutants),
    [](const auto& info) { return info.param.name; });

// The `mpi` backend, whose ranks mpirun starts.
class CollectivesMpiTest
    : public testing::TestWithParam<std::tuple<int, Algorithm>> {};

TEST_P(CollectivesMpiTest, GiveWhatTheReferenceGives) {
  CollectiveClaims claims("mpi", std::get<0>(GetParam()));
  if (!WhyNoMpirun().empty()) GTEST_SKIP() << WhyNoMpirun();
  RunRanksOptions options;
  options.group.algorithm = std::get<1>(GetParam());
  const auto salt = static_cast<uint64_t>(options.group.algorithm);
  const auto asked = RunMpiRanksCollect(
      std::get<0>(GetParam()),
      [salt](Communicator& communicator) {
        return CheckCollectives(communicator, Memory::kOrdinary, salt);
      },
      options);
  EXPECT_THAT(asked, Each(IsOk()));
  claims.Add(asked);
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesMpiTest,
                         testing::Combine(testing::Values(1, 2, 3, 5, 8),
                                          testing::Values(Algorithm::kAuto,
                                                          Algorithm::kRing,
                                                          Algorithm::kTree)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<1>(info.param)),
                                               "P", std::get<0>(info.param));
                         });

// The following tests check the diagnoses of wrong outputs, in addition to
// those of the mutants.

constexpr int kRanks = 3;
constexpr int kRank = 1;

CollectiveCase AllReduce(ReduceOp op, int64_t count = 67) {
  return {.operation = Operation::kAllReduce,
          .type = DataType::kFloat32,
          .op = op,
          .count = count};
}

// Returns rank 1's output of a reduction of `taken`.
Bytes Output(const CollectiveCase& call, const InputMistake& taken = {},
             int world_size = kRanks) {
  return OutputOf(call, AdditionOrder::kBySize, world_size, kRank, taken)
      .value();
}

std::string CauseOf(const CollectiveCase& call, const Bytes& got,
                    int world_size = kRanks) {
  const Bytes want = Output(call, {}, world_size);
  const Bytes before(want.size(), std::byte{0x5a});
  return CauseOfOutput({call, AdditionOrder::kBySize, world_size, kRank,
                        got.data(), want, before});
}

TEST(CollectiveCausesTest, NamesTheRightRanks) {
  CollectiveCase call = AllReduce(ReduceOp::kSum, 9000);
  EXPECT_EQ(CauseOf(call, Output(call, {.ranks = {2, 1, 0}, .twice = -1})),
            ", as if the ranks were added in the order 2, 1, 0");
  // There are more ranks than are tried in every order.
  EXPECT_EQ(
      CauseOf(call, Output(call, {.ranks = {1, 0, 4, 3, 2}, .twice = -1}, 5),
              5),
      ", as if the ranks were added in the order 1, 0, 4, 3, 2");
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct}) {
    call = AllReduce(op);
    EXPECT_EQ(CauseOf(call, Output(call, {.ranks = {}, .twice = 2})),
              ", as if rank 2's input were taken twice");
  }
  call.operation = Operation::kScatter;
  call.root = 2;
  CollectiveCase other = call;
  other.root = 0;
  EXPECT_EQ(CauseOf(call, Output(other)), ", as if rank 0 were the root");
}

TEST(CollectiveCausesTest, NamesNothingThatDoesNotGiveEveryBit) {
  for (const ReduceOp op : kAllReduceOps) {
    const CollectiveCase call = AllReduce(op);
    Bytes got = Output(call);
    got[4 * 33] ^= std::byte{1};
    EXPECT_EQ(CauseOf(call, got), "");
    std::swap_ranges(got.begin(), got.begin() + 4, got.end() - 4);
    EXPECT_EQ(CauseOf(call, got), "");
  }
}

TEST(CollectiveCausesTest, NamesTheRootOfAStrayOutputIfItIsIts) {
  CollectiveCase call = AllReduce(ReduceOp::kSum);
  call.operation = Operation::kReduce;
  call.root = kRank;
  Bytes got = Output(call);
  call.root = 0;
  const auto cause = [&] {
    return CauseOfStrayOutput(call, AdditionOrder::kBySize, kRanks, kRank,
                              got.data());
  };
  EXPECT_EQ(cause(), ", as if rank 1 were the root");
  got[0] ^= std::byte{1};
  EXPECT_EQ(cause(), "");
}

}  // namespace
}  // namespace lockstep::conformance
