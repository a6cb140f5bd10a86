#include "collectives/algorithms/reduction.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Memory `offset` bytes past an address that is a multiple of 64, between
// guards.
class Memory {
 public:
  Memory(const Bytes& contents, int64_t offset)
      : size_(contents.size()),
        bytes_(contents.size() + 3 * kGuard, std::byte{0x5a}) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    begin_ = kGuard + (-address & 63) + static_cast<size_t>(offset);
    std::copy(contents.begin(), contents.end(), bytes_.begin() + Begin());
  }
  Memory(int64_t size, int64_t offset)
      : Memory(Bytes(static_cast<size_t>(size), std::byte{0xa5}), offset) {}

  std::byte* data() { return bytes_.data() + begin_; }
  bool Holds(const Bytes& contents) const {
    return size_ == contents.size() &&
           std::equal(contents.begin(), contents.end(),
                      bytes_.begin() + Begin());
  }
  bool GuardsAreIntact() const {
    const auto is_guard = [](std::byte b) { return b == std::byte{0x5a}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + Begin(), is_guard) &&
           std::all_of(bytes_.begin() + Begin() + static_cast<ptrdiff_t>(size_),
                       bytes_.end(), is_guard);
  }

 private:
  static constexpr size_t kGuard = 64;
  ptrdiff_t Begin() const { return static_cast<ptrdiff_t>(begin_); }

  size_t size_;
  Bytes bytes_;
  size_t begin_ = 0;
};

// Which memory the outputs are: inputs by number, or kElsewhere.
constexpr int kElsewhere = -1;

struct FoldCase {
  DataType type;
  ReduceOp op;
  FoldOrder order = FoldOrder::kChain;
  std::vector<int> outputs = {kElsewhere};
  std::vector<int64_t> input_offsets = {};  // Bytes; cyclic; none: 0.
  int64_t output_offset = 0;
};

int64_t OffsetOf(const FoldCase& c, size_t input) {
  if (c.input_offsets.empty()) return 0;
  return c.input_offsets[input % c.input_offsets.size()];
}

// Whether Fold, or FoldTree, gives `want` in every output, and leaves
// everything else as it was.
bool Gives(const FoldCase& c, const std::vector<Bytes>& inputs,
           const Bytes& want) {
  std::vector<Memory> memory;
  for (size_t i = 0; i < inputs.size(); ++i) {
    memory.emplace_back(inputs[i], OffsetOf(c, i));
  }
  std::vector<Memory> others;
  for (const int output : c.outputs) {
    const size_t size = output == kElsewhere ? want.size() : 0;
    others.emplace_back(static_cast<int64_t>(size), c.output_offset);
  }
  std::vector<const void*> from;
  for (Memory& m : memory) from.push_back(m.data());
  std::vector<void*> to;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const int output = c.outputs[i];
    to.push_back(output == kElsewhere
                     ? others[i].data()
                     : memory[static_cast<size_t>(output)].data());
  }
  const Reduction reduction(c.type, c.op, static_cast<int>(inputs.size()));
  const int64_t n = static_cast<int64_t>(want.size()) / SizeOf(c.type);
  if (c.order == FoldOrder::kTree) {
    reduction.FoldTree(from, to, n);
  } else {
    reduction.Fold(from, to, n);
  }
  bool right = true;
  for (size_t i = 0; i < to.size(); ++i) {
    right &= c.outputs[i] != kElsewhere || others[i].Holds(want);
    right &= others[i].GuardsAreIntact();
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool is_output =
        std::count(c.outputs.begin(), c.outputs.end(), static_cast<int>(i)) > 0;
    right &= memory[i].Holds(is_output ? want : inputs[i]);
    right &= memory[i].GuardsAreIntact();
  }
  return right;
}

class ReductionTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
};

TEST_P(ReductionTest, EveryCountAndAlignment) {
  for (int64_t n = 0; n <= 70; ++n) {
    const std::vector<Bytes> inputs = DrawInputs(type(), 2, n);
    const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
    for (const int64_t a : {0, 1, 4, 7}) {
      for (const int64_t b : {0, 3, 4}) {
        for (const int64_t out : {0, 1, 8}) {
          ASSERT_TRUE(Gives(
              {type(), op(), FoldOrder::kChain, {kElsewhere}, {a, b}, out},
              inputs, want))
              << n << " elements at " << a << ", " << b << ", " << out;
        }
      }
    }
  }
}

// Which outputs there may be for P inputs.
std::vector<std::vector<int>> OutputsFor(int world_size) {
  std::vector<std::vector<int>> outputs = {{kElsewhere},
                                           {kElsewhere, kElsewhere}};
  std::vector<int> all;
  for (int i = 0; i < world_size; ++i) {
    outputs.push_back({i});
    outputs.push_back({kElsewhere, i});
    outputs.push_back({i, kElsewhere});
    all.push_back(i);
  }
  outputs.push_back(all);
  return outputs;
}

TEST_P(ReductionTest, EveryOutputAndWorldSize) {
  for (int world_size = 1; world_size <= 9; ++world_size) {
    for (const int64_t n : {1, 33, 2500}) {
      const std::vector<Bytes> inputs = DrawInputs(type(), world_size, n);
      for (const FoldOrder order : {FoldOrder::kChain, FoldOrder::kTree}) {
        const Bytes want = Reference(type(), op(), order, inputs);
        for (const std::vector<int>& outputs : OutputsFor(world_size)) {
          if (n > 100 && outputs.size() < 2) continue;
          ASSERT_TRUE(
              Gives({type(), op(), order, outputs, {0, 5}, 3}, inputs, want))
              << world_size << " ranks, " << n << " elements, first output "
              << outputs[0] << " of " << outputs.size();
        }
      }
    }
  }
}

TEST_P(ReductionTest, EveryCountNearTheBlock) {
  // 8 KiB of accumulators.
  for (const int64_t accumulator : {1, 4, 8}) {
    for (const int64_t off : {-1, 0, 1}) {
      const int64_t n = (8 << 10) / accumulator + off;
      const std::vector<Bytes> inputs = DrawInputs(type(), 3, n);
      for (const FoldOrder order : {FoldOrder::kChain, FoldOrder::kTree}) {
        ASSERT_TRUE(Gives({type(), op(), order}, inputs,
                          Reference(type(), op(), order, inputs)))
            << n;
      }
    }
  }
}

// Accumulators, of any alignment.
Memory Accumulators(const Reduction& reduction, int64_t n) {
  return Memory(n * SizeOf(reduction.accumulator()), /*offset=*/1);
}

TEST_P(ReductionTest, StepsGiveWhatFoldGives) {
  constexpr int64_t kCount = 67;
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const std::vector<Bytes> inputs = DrawInputs(type(), world_size, kCount);
    const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
    const Reduction reduction(type(), op(), world_size);
    Memory sums = Accumulators(reduction, kCount);
    Memory other = Accumulators(reduction, kCount);
    Memory* earlier = &sums;
    reduction.Begin(inputs[0].data(), earlier->data(), kCount);
    for (size_t i = 1; i < inputs.size(); ++i) {
      // In place, elsewhere, and over the input, in turn.
      Memory* result = i % 3 == 0 ? earlier : earlier == &sums ? &other : &sums;
      const void* input = inputs[i].data();
      if (i % 3 == 2 && reduction.accumulates_in_place()) {
        std::memcpy(result->data(), input, inputs[i].size());
        input = result->data();
      }
      reduction.Accumulate(earlier->data(), input, result->data(), kCount);
      earlier = result;
    }
    Memory output(static_cast<int64_t>(want.size()), 3);
    reduction.Finish(earlier->data(), output.data(), kCount);
    EXPECT_TRUE(output.Holds(want)) << world_size;
    EXPECT_TRUE(output.GuardsAreIntact() && sums.GuardsAreIntact() &&
                other.GuardsAreIntact());
    if (reduction.accumulates_in_place()) {
      reduction.Finish(earlier->data(), earlier->data(), kCount);
      EXPECT_TRUE(earlier->Holds(want)) << "in place";
    }
  }
}

// The sums of ranks [begin, end); into the earlier or the later operand, by
// `begin`.
Memory MergeNode(const Reduction& reduction, const std::vector<Bytes>& inputs,
                 int begin, int end, int64_t n) {
  if (end - begin == 1) {
    Memory leaf = Accumulators(reduction, n);
    reduction.Begin(inputs[static_cast<size_t>(begin)].data(), leaf.data(), n);
    return leaf;
  }
  const int split = TreeSplit(static_cast<int>(inputs.size()), begin, end);
  Memory earlier = MergeNode(reduction, inputs, begin, split, n);
  Memory later = MergeNode(reduction, inputs, split, end, n);
  Memory& result = begin % 2 == 0 ? earlier : later;
  reduction.Merge(earlier.data(), later.data(), result.data(), n);
  return result;
}

TEST_P(ReductionTest, MergesGiveWhatFoldTreeGives) {
  constexpr int64_t kCount = 67;
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const std::vector<Bytes> inputs = DrawInputs(type(), world_size, kCount);
    const Bytes want = Reference(type(), op(), FoldOrder::kTree, inputs);
    const Reduction reduction(type(), op(), world_size);
    Memory sums = MergeNode(reduction, inputs, 0, world_size, kCount);
    Memory output(static_cast<int64_t>(want.size()), 3);
    reduction.Finish(sums.data(), output.data(), kCount);
    EXPECT_TRUE(output.Holds(want)) << world_size;
  }
}

TEST_P(ReductionTest, SixtyFourInputs) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 64, 1100);
  for (const FoldOrder order : {FoldOrder::kChain, FoldOrder::kTree}) {
    EXPECT_TRUE(Gives({type(), op(), order, {kElsewhere, 63, 0}}, inputs,
                      Reference(type(), op(), order, inputs)));
  }
}

// The controls.
TEST_P(ReductionTest, RejectsOneWrongByte) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 3, 67);
  const Bytes right = Reference(type(), op(), FoldOrder::kChain, inputs);
  for (size_t i = 0; i < right.size(); ++i) {
    Bytes wrong = right;
    wrong[i] ^= std::byte{1};
    EXPECT_FALSE(Gives({type(), op()}, inputs, wrong));
  }
}

TEST_P(ReductionTest, RejectsAnInputThatIsLostOrCountedTwice) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 3, 67);
  const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
  EXPECT_TRUE(Gives({type(), op()}, inputs, want));
  EXPECT_FALSE(Gives({type(), op()}, {inputs[0], inputs[1]}, want));
  EXPECT_FALSE(Gives({type(), op()}, {inputs[0], inputs[1], inputs[1]}, want));
  if (op() != ReduceOp::kMin && op() != ReduceOp::kMax) {
    EXPECT_FALSE(Gives({type(), op()},
                       {inputs[0], inputs[1], inputs[2], inputs[2]}, want));
  }
}

std::string ParamName(
    const testing::TestParamInfo<ReductionTest::ParamType>& info) {
  return absl::StrCat(Name(std::get<0>(info.param)),
                      Name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Each, ReductionTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::ValuesIn(kAllReduceOps)),
                         ParamName);

// Over 16 MiB in all, enough to be streamed to outputs that are not inputs;
// with and without a division at the end.
class LargeReductionTest : public ReductionTest {};

TEST_P(LargeReductionTest, EveryOutput) {
  const int64_t n = ((6 << 20) + 100) / SizeOf(type()) + 1;
  const std::vector<Bytes> inputs = DrawInputs(type(), 2, n);
  const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
  const auto gives = [&](std::vector<int> outputs, int64_t offset) {
    return Gives(
        {type(), op(), FoldOrder::kChain, std::move(outputs), {0, 1}, offset},
        inputs, want);
  };
  EXPECT_TRUE(gives({kElsewhere}, 0));
  EXPECT_TRUE(gives({kElsewhere, kElsewhere}, 3));
  EXPECT_TRUE(gives({1, kElsewhere}, 3));
  EXPECT_TRUE(gives({kElsewhere, 0}, 16));
  EXPECT_TRUE(gives({0, 1}, 0));
}

INSTANTIATE_TEST_SUITE_P(Each, LargeReductionTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::Values(ReduceOp::kSum,
                                                          ReduceOp::kAverage)),
                         ParamName);

TEST(ReductionControlsTest, RejectsAnotherOrderOfAdditions) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64}) {
    const std::vector<Bytes> inputs = DrawInputs(type, 4, 67);
    const Bytes chain =
        Reference(type, ReduceOp::kSum, FoldOrder::kChain, inputs);
    const Bytes tree =
        Reference(type, ReduceOp::kSum, FoldOrder::kTree, inputs);
    EXPECT_FALSE(
        Gives({type, ReduceOp::kSum, FoldOrder::kChain}, inputs, tree));
    EXPECT_FALSE(
        Gives({type, ReduceOp::kSum, FoldOrder::kTree}, inputs, chain));
    EXPECT_FALSE(Gives({type, ReduceOp::kSum},
                       {inputs[1], inputs[2], inputs[3], inputs[0]}, chain));
  }
}

TEST(ReductionControlsTest, RejectsASumForAnAverage) {
  for (const DataType type : kAllDataTypes) {
    const std::vector<Bytes> inputs = DrawInputs(type, 3, 67);
    EXPECT_FALSE(
        Gives({type, ReduceOp::kSum}, inputs,
              Reference(type, ReduceOp::kAverage, FoldOrder::kChain, inputs)));
  }
}

}  // namespace
}  // namespace lockstep
