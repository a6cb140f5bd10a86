// What RunAndCheck must reject.
#include "collectives/algorithms/checked_call.h"

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Runs on 3 ranks; rank 2 does `harm_after` to its buffers.
absl::Status RunHarmed(const CheckedCall& call, AdditionOrder order,
                       absl::FunctionRef<void(const Collective&)> harm_after) {
  return FirstCause(RunOverMemory(3, {}, [&](Transport& transport) {
    return RunAndCheck(transport, call, order,
                       [&](Transport& t, const Collective& collective) {
                         absl::Status status =
                             RunOverTransport(t, collective, Algorithm::kAuto);
                         if (t.rank() == 2) harm_after(collective);
                         return status;
                       });
  }));
}

constexpr auto kNoHarm = [](const Collective&) {};

TEST(RunAndCheckTest, RejectsOneWrongBit) {
  const CheckedCall call = {.operation = Operation::kAllToAll, .count = 5};
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kBySize, kNoHarm), IsOk());
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kBySize,
                        [](const Collective& c) {
                          c.output.bytes()[14 * 8 + 7] ^= std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the output is wrong from element 14 of 15")));
}

TEST(RunAndCheckTest, RejectsAWriteBesideTheOutput) {
  EXPECT_THAT(RunHarmed({.operation = Operation::kAllReduce, .count = 5},
                        AdditionOrder::kBySize,
                        [](const Collective& c) {
                          c.output.bytes()[c.output.size_bytes()] ^=
                              std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("beside")));
}

TEST(RunAndCheckTest, RejectsAChangedInput) {
  EXPECT_THAT(RunHarmed({.operation = Operation::kAllReduce, .count = 5},
                        AdditionOrder::kBySize,
                        [](const Collective& c) {
                          const_cast<std::byte&>(c.input.bytes()[0]) ^=
                              std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the input")));
}

TEST(RunAndCheckTest, RejectsTheOtherOrder) {
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduce}) {
    const CheckedCall call = {operation, DataType::kFloat32, ReduceOp::kSum,
                              /*count=*/100};
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kTree, kNoHarm), IsOk());
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kRing, kNoHarm),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong")));
  }
}

TEST(RunAndCheckTest, RejectsTheOtherOrderOfZeros) {
  CheckedCall call = {Operation::kAllReduce, DataType::kFloat32, ReduceOp::kMax,
                      /*count=*/100};
  call.only_zeros = true;
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kTree, kNoHarm), IsOk());
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kRing, kNoHarm),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong")));
}

}  // namespace
}  // namespace lockstep
