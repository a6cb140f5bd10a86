// The tree at sizes below and above those at which ranges are halved, also
// beyond those at which RunOverTransport uses it.
#include "collectives/algorithms/tree.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/algorithms/tree_schedule.h"
#include "collectives/collective.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

absl::Status RunTree(Transport& transport, const Collective& call) {
  if (call.operation == Operation::kAllReduce) {
    return TreeAllReduce(transport, call.input, call.output, call.op);
  }
  return TreeReduce(transport, call.input, call.output, call.op, call.peer);
}

class TreeTest : public testing::TestWithParam<int> {
 protected:
  void Check(const std::vector<CheckedCall>& calls, int max_pieces) {
    const auto statuses = RunOverMemory(
        GetParam(), {.max_piece_bytes = 192, .max_pieces = max_pieces},
        [&](Transport& transport) {
          for (const CheckedCall& call : calls) {
            LOCKSTEP_RETURN_IF_ERROR(
                RunAndCheck(transport, call, AdditionOrder::kTree, RunTree));
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(FirstCause(statuses), IsOk());
  }
};

// 1, 2, 4 and 8 times what is not halved, more or less.
std::vector<int64_t> Counts(int64_t accumulator_bytes) {
  std::vector<int64_t> counts = {0, 1, 2, 7};
  for (const int64_t whole : {1, 2, 4, 8}) {
    const int64_t count = whole * kTreeWholeBytes / accumulator_bytes;
    counts.insert(counts.end(), {count - 1, count, count + 1});
  }
  return counts;
}

TEST_P(TreeTest, ReducesInTheOrderOfTheTree) {
  for (const int max_pieces : {2, 4}) {
    std::vector<CheckedCall> calls;
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16}) {
      for (const int64_t count : Counts(/*accumulator_bytes=*/4)) {
        for (const bool in_place : {false, true}) {
          calls.push_back({Operation::kAllReduce, type, ReduceOp::kSum, count,
                           /*root=*/0, in_place});
        }
      }
    }
    Check(calls, max_pieces);
  }
}

TEST_P(TreeTest, ReducesToEachRoot) {
  std::vector<CheckedCall> calls;
  for (int root = 0; root < GetParam(); ++root) {
    for (const int64_t count : Counts(/*accumulator_bytes=*/8)) {
      calls.push_back({Operation::kReduce, DataType::kUInt8, ReduceOp::kAverage,
                       count, root,
                       /*in_place=*/count % 2 == 0});
    }
  }
  Check(calls, /*max_pieces=*/2);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, TreeTest,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

}  // namespace
}  // namespace lockstep
