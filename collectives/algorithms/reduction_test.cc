// Compares reductions with the reference, for every type, operation, count,
// alignment and place of the outputs, and with known results. Tests that every
// instruction set that the processor supports gives the bits of the baseline.
// Tests the copies that bypass the caches.
#include "collectives/algorithms/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "base/vector_unit.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

GuardedMemory Blank(int64_t size, int64_t offset) {
  return GuardedMemory(Bytes(static_cast<size_t>(size), std::byte{0xa5}),
                       offset);
}

// The memory of an output: the number of an input, or kElsewhere.
constexpr int kElsewhere = -1;

struct FoldCase {
  DataType type;
  ReduceOp op;
  FoldOrder order = FoldOrder::kChain;
  std::vector<int> outputs = {kElsewhere};
  std::vector<int64_t> input_offsets = {};  // In bytes; repeated; empty: 0.
  int64_t output_offset = 0;
};

int64_t OffsetOf(const FoldCase& c, size_t input) {
  if (c.input_offsets.empty()) return 0;
  return c.input_offsets[input % c.input_offsets.size()];
}

// Returns whether Fold, or FoldTree, gives `want` in every output and changes
// no other memory.
bool MatchesReference(const FoldCase& c, const std::vector<Bytes>& inputs,
                      const Bytes& want) {
  std::vector<GuardedMemory> memory;
  for (size_t i = 0; i < inputs.size(); ++i) {
    memory.emplace_back(inputs[i], OffsetOf(c, i));
  }
  std::vector<GuardedMemory> others;
  std::vector<void*> to(c.outputs.size());
  for (size_t i = 0; i < to.size(); ++i) {
    const int output = c.outputs[i];
    if (output == kElsewhere) {
      others.push_back(
          Blank(static_cast<int64_t>(want.size()), c.output_offset));
      to[i] = others.back().data();
    } else {
      to[i] = memory[output].data();
    }
  }
  std::vector<const void*> from;
  for (GuardedMemory& m : memory) from.push_back(m.data());
  const Reduction reduction(c.type, c.op, static_cast<int>(inputs.size()));
  const int64_t n = static_cast<int64_t>(want.size()) / SizeOf(c.type);
  if (c.order == FoldOrder::kTree) {
    reduction.FoldTree(from, to, n);
  } else {
    reduction.Fold(from, to, n);
  }
  bool right = true;
  for (const GuardedMemory& other : others) right &= other.Holds(want);
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool is_output =
        std::count(c.outputs.begin(), c.outputs.end(), static_cast<int>(i)) > 0;
    right &= memory[i].Holds(is_output ? want : inputs[i]);
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
          ASSERT_TRUE(MatchesReference(
              {type(), op(), FoldOrder::kChain, {kElsewhere}, {a, b}, out},
              inputs, want))
              << n << " elements at " << a << ", " << b << ", " << out;
        }
      }
    }
  }
}

// Returns the sets of outputs to test for P inputs.
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
          ASSERT_TRUE(MatchesReference(
              {type(), op(), order, outputs, {0, 5}, 3}, inputs, want))
              << world_size << " ranks, " << n << " elements, first output "
              << outputs[0] << " of " << outputs.size();
        }
      }
    }
  }
}

TEST_P(ReductionTest, EveryCountNearTheBlock) {
  // 4 KiB of accumulators.
  for (const int64_t accumulator : {1, 4, 8}) {
    for (const int64_t off : {-1, 0, 1}) {
      const int64_t n = (4 << 10) / accumulator + off;
      for (const int world_size : {2, 4}) {
        const std::vector<Bytes> inputs = DrawInputs(type(), world_size, n);
        for (const FoldOrder order : {FoldOrder::kChain, FoldOrder::kTree}) {
          ASSERT_TRUE(MatchesReference({type(), op(), order}, inputs,
                                       Reference(type(), op(), order, inputs)))
              << world_size << " ranks, " << n;
        }
      }
    }
  }
}

// Returns memory for accumulators, unaligned.
GuardedMemory Accumulators(const Reduction& reduction, int64_t n) {
  return Blank(n * SizeOf(reduction.accumulator()), /*offset=*/1);
}

TEST_P(ReductionTest, StepsGiveWhatFoldGives) {
  constexpr int64_t kCount = 67;
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const std::vector<Bytes> inputs = DrawInputs(type(), world_size, kCount);
    const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
    const Reduction reduction(type(), op(), world_size);
    GuardedMemory sums = Accumulators(reduction, kCount);
    GuardedMemory other = Accumulators(reduction, kCount);
    GuardedMemory* earlier = &sums;
    reduction.Begin(inputs[0].data(), earlier->data(), kCount);
    for (size_t i = 1; i < inputs.size(); ++i) {
      // The result is in place, elsewhere, or over the input, in turn.
      GuardedMemory* result = i % 3 == 0         ? earlier
                              : earlier == &sums ? &other
                                                 : &sums;
      const void* input = inputs[i].data();
      if (i % 3 == 2 && reduction.accumulates_in_place()) {
        std::memcpy(result->data(), input, inputs[i].size());
        input = result->data();
      }
      reduction.Accumulate(earlier->data(), input, result->data(), kCount);
      earlier = result;
    }
    GuardedMemory output = Blank(static_cast<int64_t>(want.size()), 3);
    reduction.Finish(earlier->data(), output.data(), kCount);
    EXPECT_TRUE(output.Holds(want)) << world_size;
    EXPECT_THAT(sums.Read(), IsOk());
    EXPECT_THAT(other.Read(), IsOk());
    if (reduction.accumulates_in_place()) {
      reduction.Finish(earlier->data(), earlier->data(), kCount);
      EXPECT_TRUE(earlier->Holds(want)) << "in place";
    }
  }
}

// Returns the sums of ranks [begin, end). `begin` decides whether the result
// overwrites the earlier or the later operand.
GuardedMemory MergeNode(const Reduction& reduction,
                        const std::vector<Bytes>& inputs, int begin, int end,
                        int64_t n) {
  if (end - begin == 1) {
    GuardedMemory leaf = Accumulators(reduction, n);
    reduction.Begin(inputs[begin].data(), leaf.data(), n);
    return leaf;
  }
  const int split = TreeSplit(static_cast<int>(inputs.size()), begin, end);
  GuardedMemory earlier = MergeNode(reduction, inputs, begin, split, n);
  GuardedMemory later = MergeNode(reduction, inputs, split, end, n);
  GuardedMemory& result = begin % 2 == 0 ? earlier : later;
  reduction.Merge(earlier.data(), later.data(), result.data(), n);
  return result;
}

TEST_P(ReductionTest, MergesGiveWhatFoldTreeGives) {
  constexpr int64_t kCount = 67;
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const std::vector<Bytes> inputs = DrawInputs(type(), world_size, kCount);
    const Bytes want = Reference(type(), op(), FoldOrder::kTree, inputs);
    const Reduction reduction(type(), op(), world_size);
    GuardedMemory sums = MergeNode(reduction, inputs, 0, world_size, kCount);
    GuardedMemory output = Blank(static_cast<int64_t>(want.size()), 3);
    reduction.Finish(sums.data(), output.data(), kCount);
    EXPECT_TRUE(output.Holds(want)) << world_size;
  }
}

TEST_P(ReductionTest, SixtyFourInputs) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 64, 1100);
  for (const FoldOrder order : {FoldOrder::kChain, FoldOrder::kTree}) {
    EXPECT_TRUE(MatchesReference({type(), op(), order, {kElsewhere, 63, 0}},
                                 inputs,
                                 Reference(type(), op(), order, inputs)));
  }
}

// The control: a wrong byte must be detected.
TEST_P(ReductionTest, RejectsOneWrongByte) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 3, 67);
  const Bytes right = Reference(type(), op(), FoldOrder::kChain, inputs);
  for (size_t i = 0; i < right.size(); ++i) {
    Bytes wrong = right;
    wrong[i] ^= std::byte{1};
    EXPECT_FALSE(MatchesReference({type(), op()}, inputs, wrong));
  }
}

TEST_P(ReductionTest, RejectsAnInputThatIsLostOrCountedTwice) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 3, 67);
  const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
  EXPECT_TRUE(MatchesReference({type(), op()}, inputs, want));
  EXPECT_FALSE(MatchesReference({type(), op()}, {inputs[0], inputs[1]}, want));
  EXPECT_FALSE(MatchesReference({type(), op()},
                                {inputs[0], inputs[1], inputs[1]}, want));
  if (op() != ReduceOp::kMin && op() != ReduceOp::kMax) {
    EXPECT_FALSE(MatchesReference(
        {type(), op()}, {inputs[0], inputs[1], inputs[2], inputs[2]}, want));
  }
}

std::string ParamName(
    const testing::TestParamInfo<ReductionTest::ParamType>& info) {
  return absl::StrCat(Name(std::get<0>(info.param)),
                      Name(std::get<1>(info.param)));
}

const auto kEach = testing::Combine(testing::ValuesIn(kAllDataTypes),
                                    testing::ValuesIn(kAllReduceOps));

INSTANTIATE_TEST_SUITE_P(Each, ReductionTest, kEach, ParamName);

// Reductions of over 16 MiB in all, which are streamed to outputs that are not
// inputs. Some divide at the end.
class LargeReductionTest : public ReductionTest {};

TEST_P(LargeReductionTest, EveryOutput) {
  const int64_t n = ((6 << 20) + 100) / SizeOf(type()) + 1;
  const std::vector<Bytes> inputs = DrawInputs(type(), 2, n);
  const Bytes want = Reference(type(), op(), FoldOrder::kChain, inputs);
  const auto gives = [&](std::vector<int> outputs, int64_t offset) {
    return MatchesReference(
        {type(), op(), FoldOrder::kChain, std::move(outputs), {0, 1}, offset},
        inputs, want);
  };
  EXPECT_TRUE(gives({kElsewhere}, 0));
  EXPECT_TRUE(gives({kElsewhere, kElsewhere}, 3));
  EXPECT_TRUE(gives({1, kElsewhere}, 3));
  EXPECT_TRUE(gives({kElsewhere, 0}, 16));
  EXPECT_TRUE(gives({0, 1}, 0));
}

// Returns one type for each width of accumulator: elements, wider, much wider.
// Only an exhaustive run tests the other types, because each takes half a
// second.
std::vector<DataType> LargeTypes() {
  if (IsExhaustive())
    return {std::begin(kAllDataTypes), std::end(kAllDataTypes)};
  return {DataType::kFloat32, DataType::kFloat16, DataType::kUInt8};
}

INSTANTIATE_TEST_SUITE_P(Each, LargeReductionTest,
                         testing::Combine(testing::ValuesIn(LargeTypes()),
                                          testing::Values(ReduceOp::kSum,
                                                          ReduceOp::kAverage)),
                         ParamName);

TEST(ReductionControlsTest, RejectsAnotherOrderOfAdditionsAndASumForAnAverage) {
  using enum ReduceOp;
  using enum FoldOrder;
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64}) {
    const std::vector<Bytes> x = DrawInputs(type, 4, 67);
    const Bytes chain = Reference(type, kSum, kChain, x);
    EXPECT_FALSE(MatchesReference({type, kSum, kChain}, x,
                                  Reference(type, kSum, kTree, x)));
    EXPECT_FALSE(MatchesReference({type, kSum, kTree}, x, chain));
    EXPECT_FALSE(
        MatchesReference({type, kSum}, {x[1], x[2], x[3], x[0]}, chain));
  }
  for (const DataType type : kAllDataTypes) {
    const std::vector<Bytes> x = DrawInputs(type, 3, 67);
    EXPECT_FALSE(MatchesReference({type, kSum}, x,
                                  Reference(type, kAverage, kChain, x)));
  }
}

// Tests of the loops.

constexpr int kWorldSize = 3;

// Returns the results of the five loops for two operands, one after the other.
std::vector<Bytes> RunAll(VectorUnit unit, DataType type, ReduceOp op,
                          const std::vector<Bytes>& inputs, int64_t n) {
  const ReductionKernels& kernels = ReductionKernelsFor(type, op, unit);
  const auto size = static_cast<size_t>(n * SizeOf(AccumulatorOf(type, op)));
  Bytes begun = inputs[0];
  if (kernels.begin != nullptr) {
    begun.resize(size);
    kernels.begin(inputs[0].data(), begun.data(), n);
  }
  Bytes sums(size);
  kernels.accumulate(begun.data(), inputs[1].data(), sums.data(), n);
  Bytes merged(size);
  kernels.merge(sums.data(), begun.data(), merged.data(), n);
  Bytes finished;
  if (kernels.finish != nullptr) {
    finished.resize(inputs[0].size());
    kernels.finish(merged.data(), finished.data(), n, kWorldSize);
  }
  Bytes three;
  if (kernels.accumulate_three != nullptr) {
    three.resize(size);
    const void* const later[] = {inputs[1].data(), begun.data(), sums.data()};
    kernels.accumulate_three(begun.data(), later, three.data(), n);
  }
  return {begun, sums, merged, finished, three};
}

std::vector<VectorUnit> VectorUnits() {
  std::vector<VectorUnit> units;
  for (const VectorUnit unit :
       {VectorUnit::kBaseline, VectorUnit::kAvx2, VectorUnit::kAvx512}) {
    if (unit <= BestVectorUnit()) units.push_back(unit);
  }
  return units;
}

class ReductionKernelsTest : public ReductionTest {};

TEST_P(ReductionKernelsTest, EveryInstructionSetGivesTheSameBits) {
  for (int64_t n = 1; n <= 1000; n += n < 70 ? 1 : 93) {
    const std::vector<Bytes> inputs = DrawInputs(type(), 2, n);
    for (const VectorUnit unit : VectorUnits()) {
      EXPECT_EQ(RunAll(unit, type(), op(), inputs, n),
                RunAll(VectorUnit::kBaseline, type(), op(), inputs, n))
          << n;
    }
  }
}

// Tests every float16, and every float that is a float16's neighbour, a middle
// between two, or NaN.
TEST(ReductionKernelsFloat16Test, EveryInstructionSetConvertsAlike) {
  constexpr int64_t kCount = 1 << 16;
  std::vector<uint16_t> halves(kCount);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<uint32_t> floats(kCount);
  for (const VectorUnit unit : VectorUnits()) {
    const ReductionKernels& kernels =
        ReductionKernelsFor(DataType::kFloat16, ReduceOp::kSum, unit);
    std::vector<float> widened(kCount);
    kernels.begin(halves.data(), widened.data(), kCount);
    for (size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(widened[i]),
                std::bit_cast<uint32_t>(ToFloat(Float16{halves[i]})));
    }
    for (const uint32_t distance : {0u, 1u, 0xfffu, 0x1000u, 0x1001u}) {
      for (size_t i = 0; i < floats.size(); ++i) {
        floats[i] = std::bit_cast<uint32_t>(widened[i]) + distance;
      }
      std::vector<uint16_t> narrowed(kCount);
      kernels.finish(floats.data(), narrowed.data(), kCount, kWorldSize);
      for (size_t i = 0; i < floats.size(); ++i) {
        ASSERT_EQ(narrowed[i], ToFloat16(std::bit_cast<float>(floats[i])).bits)
            << floats[i];
      }
    }
  }
}

// The control: the comparison detects another operand and another operation.
TEST_P(ReductionKernelsTest, RejectsOtherOperands) {
  const std::vector<Bytes> inputs = DrawInputs(type(), 3, 67);
  const std::vector<Bytes> others = {inputs[0], inputs[2]};
  EXPECT_NE(RunAll(BestVectorUnit(), type(), op(), inputs, 67),
            RunAll(VectorUnit::kBaseline, type(), op(), others, 67));
}

INSTANTIATE_TEST_SUITE_P(Each, ReductionKernelsTest, kEach, ParamName);

template <typename E>
std::vector<E> FoldValues(ReduceOp op, const std::vector<std::vector<E>>& x) {
  std::vector<const void*> inputs;
  for (const std::vector<E>& input : x) inputs.push_back(input.data());
  std::vector<E> result(x[0].size());
  void* const outputs[] = {result.data()};
  Reduction(kDataTypeOf<E>, op, static_cast<int>(x.size()))
      .Fold(inputs, outputs, static_cast<int64_t>(result.size()));
  return result;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ReductionValuesTest, NanInEitherOperandGivesOneNan) {
  const float payload = std::bit_cast<float>(0xffc1'2345u);
  const float signalling = std::bit_cast<float>(0x7f80'0001u);
  std::vector<float> a, b;
  for (const float nan : {payload, signalling, NAN}) {
    for (const float other : {1.0f, kInfinity, -0.0f, payload, signalling}) {
      for (int i = 0; i < 9; ++i) {  // Vectors, and the remainder.
        a.insert(a.end(), {nan, other});
        b.insert(b.end(), {other, nan});
      }
    }
  }
  for (const ReduceOp op : kAllReduceOps) {
    for (const float x : FoldValues<float>(op, {a, b})) {
      EXPECT_EQ(std::bit_cast<uint32_t>(x), 0x7fc0'0000u) << Name(op);
    }
  }
}

TEST(ReductionValuesTest, InfinitiesThatCancelGiveTheSameNan) {
  for (const float nan :
       {FoldValues<float>(ReduceOp::kSum, {{kInfinity}, {-kInfinity}})[0],
        FoldValues<float>(ReduceOp::kProduct, {{kInfinity}, {0}})[0]}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(nan), 0x7fc0'0000u);
  }
}

TEST(ReductionValuesTest, ZerosKeepTheEarlierSign) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const std::vector<float> zeros =
        FoldValues<float>(op, {{0.0f, -0.0f}, {-0.0f, 0.0f}});
    EXPECT_FALSE(std::signbit(zeros[0])) << Name(op);
    EXPECT_TRUE(std::signbit(zeros[1])) << Name(op);
  }
}

TEST(ReductionValuesTest, SixteenBitFloatsRoundOnceAtTheEnd) {
  // 2048 + 1 + 1: rounding after each addition would lose the ones.
  const Float16 one = ToFloat16(1);
  EXPECT_EQ(ToFloat(FoldValues<Float16>(ReduceOp::kSum,
                                        {{ToFloat16(2048)}, {one}, {one}})[0]),
            2050);
}

TEST(ReductionValuesTest, IntegersWrapAndAverageTheExactSumTowardZero) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  using I = std::vector<int32_t>;
  using U = std::vector<uint8_t>;
  EXPECT_EQ(FoldValues<int32_t>(ReduceOp::kSum, {{kMax, kMin}, {1, -1}}),
            (I{kMin, kMax}));
  EXPECT_EQ(
      FoldValues<int32_t>(ReduceOp::kProduct, {{kMin, 65536}, {-1, 65537}}),
      (I{kMin, 65536}));
  EXPECT_EQ(FoldValues<uint8_t>(ReduceOp::kSum, {{200}, {100}}), U{44});
  EXPECT_EQ(
      FoldValues<int32_t>(ReduceOp::kAverage, {{kMax, -3, 3}, {kMax, -4, 4}}),
      (I{kMax, -3, 3}));
  EXPECT_EQ(FoldValues<uint8_t>(ReduceOp::kAverage, {{255, 0}, {254, 1}}),
            (U{254, 0}));
}

using Copier = void (*)(const std::byte* from, std::byte* to, int64_t bytes);

// Returns whether a copy of `size` bytes copies them and writes no other byte.
// The offsets are from a line.
bool Copies(Copier copier, int64_t size, int64_t from_offset,
            int64_t to_offset) {
  Bytes bytes(static_cast<size_t>(size) + 1);  // One byte more than is copied.
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 251);
  GuardedMemory from(bytes, from_offset);
  GuardedMemory to = Blank(size, to_offset);
  copier(from.data(), to.data(), size);
  FinishStreaming();
  bytes.pop_back();
  return to.Holds(bytes);
}

TEST(StreamCopyTest, EverySizeAndAlignment) {
  for (int64_t size = 0; size <= 5 * kCacheLineBytes; ++size) {
    for (int64_t to = 0; to < kCacheLineBytes; ++to) {
      for (const int64_t from : {0, 1, 16, 63}) {
        ASSERT_TRUE(Copies(StreamCopy, size, from, to))
            << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

// The controls.
TEST(StreamCopyTest, RejectsAByteTooFewOrTooMany) {
  const Copier too_few = [](const std::byte* from, std::byte* to,
                            int64_t bytes) { StreamCopy(from, to, bytes - 1); };
  const Copier too_many = [](const std::byte* from, std::byte* to,
                             int64_t bytes) {
    StreamCopy(from, to, bytes + 1);
  };
  EXPECT_TRUE(Copies(StreamCopy, 100, 1, 3));
  EXPECT_FALSE(Copies(too_few, 100, 1, 3));
  EXPECT_FALSE(Copies(too_many, 100, 1, 3));
}

}  // namespace
}  // namespace lockstep
