// Tests the profiles and options of a layer. Tests that a call whose memory
// does not fit is rejected with the name of the buffer.

#include "syncbn/batch_norm_kernels.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(BatchNormSemanticsTest, AreFoundByName) {
  ASSERT_TRUE(ParseBatchNormSemantics("torch").has_value());
  EXPECT_TRUE(ParseBatchNormSemantics("torch")->unbiased_running_variance);
  ASSERT_TRUE(ParseBatchNormSemantics("paddle").has_value());
  EXPECT_FALSE(ParseBatchNormSemantics("paddle")->unbiased_running_variance);
  EXPECT_EQ(ParseBatchNormSemantics("Torch"), std::nullopt);
  EXPECT_EQ(ParseBatchNormSemantics(""), std::nullopt);
}

TEST(WeightOfBatchTest, IsMomentumOrItsComplement) {
  BatchNormOptions options;
  options.momentum = 0.3;
  EXPECT_EQ(WeightOfBatch(options, 7), 0.3);
  options.semantics = kPaddleBatchNorm;
  EXPECT_EQ(WeightOfBatch(options, 7), 1 - 0.3);
}

TEST(WeightOfBatchTest, OfTheDefaultsIsTheSameInBothProfiles) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    BatchNormOptions options;
    options.semantics = semantics;
    options.momentum = semantics.default_momentum;
    EXPECT_NEAR(WeightOfBatch(options, 1), 0.1, 1e-15) << semantics.name;
  }
}

TEST(WeightOfBatchTest, WithoutMomentumIsThatOfAnAverage) {
  BatchNormOptions options;
  options.momentum = std::nullopt;
  double average = 0;
  const double batches[] = {3, 5, 10};
  for (int i = 0; i < 3; ++i) {
    const double weight = WeightOfBatch(options, i + 1);
    average = (1 - weight) * average + weight * batches[i];
  }
  EXPECT_DOUBLE_EQ(average, 6);
}

TEST(CheckBatchNormOptionsTest, TakesWhatALayerMayBe) {
  BatchNormOptions options;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.epsilon = 0;
  options.momentum = 0;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.momentum = 1;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.momentum = std::nullopt;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
}

// A change to a valid call, and the text of the error that it causes.
template <typename Call>
struct Misfit {
  std::function<void(Call&)> change;
  std::string says;
};

TEST(CheckBatchNormOptionsTest, NamesWhatIsWrong) {
  const Misfit<BatchNormOptions> misfits[] = {
      {[](auto& o) { o.channels = 0; }, "channels is 0"},
      {[](auto& o) { o.channels = int64_t{1} << 31; },
       "channels is 2147483648"},
      {[](auto& o) { o.epsilon = -1; }, "epsilon is -1"},
      {[](auto& o) { o.epsilon = kNan; }, "epsilon is nan"},
      {[](auto& o) { o.momentum = 1.5; }, "momentum is 1.5"},
      {[](auto& o) { o.momentum = -0.1; }, "momentum is -0.1"},
      {[](auto& o) { o.momentum = kNan; }, "momentum is nan"},
      {[](auto& o) { o.semantics.refuses_one_value = false; },
       "unbiased variance of one value"}};
  for (const Misfit<BatchNormOptions>& misfit : misfits) {
    BatchNormOptions options;
    misfit.change(options);
    EXPECT_THAT(
        CheckBatchNormOptions(options),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(misfit.says)));
  }
}

constexpr int64_t kChannels = 2;
constexpr ActivationShape kShape = {.n = 3, .c = kChannels, .hw = 5};

BatchNormOptions Options() { return {.channels = kChannels}; }

// Returns the memory of a layer with weights and running statistics, for
// bfloat16.
LayerTensors MakeMemory() {
  const std::vector<double> activations(kShape.size());
  const std::vector<double> parameters(kChannels);
  return LayerTensors(
      Options(), kShape, DataType::kBFloat16,
      {activations, activations, activations, parameters, parameters});
}
BatchNorm::ForwardBuffers ForwardsOf(LayerTensors& memory) {
  return memory.ForwardBuffers({.residual = true});
}
BatchNorm::BackwardBuffers BackwardsOf(LayerTensors& memory) {
  return memory.BackwardBuffers({.relu = true, .residual = true});
}

TEST(CheckForwardsTest, TakesMemoryThatFits) {
  LayerTensors memory = MakeMemory();
  BatchNorm::ForwardBuffers forwards = ForwardsOf(memory);
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
  forwards.y = memory.residual.buffer();  // In place.
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
  forwards.y = memory.x.buffer();
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
  forwards.residual = memory.x.buffer();
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
  forwards.residual = ConstBuffer();
  forwards.bias = memory.weight.buffer();  // Both are read only.
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
}

TEST(CheckForwardsTest, TakesAnEmptyBatchWithoutMemory) {
  LayerTensors memory = MakeMemory();
  BatchNorm::ForwardBuffers forwards = ForwardsOf(memory);
  forwards.shape.n = 0;
  forwards.x = ConstBuffer(nullptr, 0, DataType::kBFloat16);
  forwards.y = Buffer();
  forwards.residual = ConstBuffer();
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
}

template <typename Call>
void ExpectRefusals(Call (*make)(LayerTensors&),
                    absl::Status (*check)(const BatchNormOptions&, const Call&),
                    const std::vector<Misfit<Call>>& misfits) {
  for (const Misfit<Call>& misfit : misfits) {
    LayerTensors memory = MakeMemory();
    Call call = make(memory);
    misfit.change(call);
    EXPECT_THAT(check(Options(), call),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         StartsWith("batch norm: " + misfit.says)));
  }
}

TEST(CheckForwardsTest, NamesWhatDoesNotFit) {
  ExpectRefusals<BatchNorm::ForwardBuffers>(
      ForwardsOf, CheckForwards,
      {
          {[](auto& f) { f.shape.c = 3; }, "shape has 3 channels"},
          {[](auto& f) { f.shape.n = -1; }, "shape has n = -1"},
          {[](auto& f) { f.shape.hw = 0; }, "shape has n = 3 and hw = 0"},
          {[](auto& f) {
             f.shape.n = int64_t{1} << 30;
             f.shape.hw = int64_t{1} << 31;
           },
           "shape has n = 1073741824, c = 2 and hw = 2147483648, of more than"},
          {[](auto& f) {
             f.shape.n = 0;
             f.shape.hw = int64_t{1} << 62;
           },
           "shape has n = 0, c = 2 and hw = 4611686018427387904, of more than"},
          {[](auto& f) { f.shape.layout = Layout::kNchw16c; },
           "shape has 2 channels in layout nchw16c, must have a multiple of "
           "16"},
          {[](auto& f) { f.x.type = DataType::kInt32; }, "x is int32"},
          {[](auto& f) { f.x.count = 29; }, "x has 29 elements, must have"},
          {[](auto& f) { f.x.data = nullptr; }, "x is null"},
          {[](auto& f) {
             f.x.data = static_cast<const std::byte*>(f.x.data) + 1;
           },
           "x is not aligned"},
          {[](auto& f) { f.y.count = 31; }, "y has 31"},
          {[](auto& f) { f.y.type = DataType::kFloat16; }, "y is float16"},
          {[](auto& f) { f.residual.count = 1; }, "residual has 1"},
          {[](auto& f) { f.weight = ConstBuffer(); }, "weight has 0"},
          {[](auto& f) { f.weight.type = DataType::kBFloat16; },
           "weight is bfloat16, must be float32"},
          {[](auto& f) { f.bias.count = 3; }, "bias has 3"},
          {[](auto& f) { f.running.mean.count = 1; }, "running mean has 1"},
          {[](auto& f) { f.running.variance = Buffer(); },
           "running variance has 0"},
          {[](auto& f) { f.running.batches = nullptr; },
           "the count of batches is null"},
          {[](auto& f) { f.saved.count = 31; }, "saved has 31"},
          {[](auto& f) { f.saved.data = f.saved.bytes() + 8; },
           "saved is not aligned to 16"},
      });
}

TEST(CheckForwardsTest, RefusesWhatTheLayerLacks) {
  LayerTensors memory = MakeMemory();
  const BatchNorm::ForwardBuffers forwards = ForwardsOf(memory);
  BatchNormOptions plain = Options();
  plain.affine = false;
  EXPECT_THAT(std::string(CheckForwards(plain, forwards).message()),
              StartsWith("batch norm: weight has 2 elements, must have 0"));
  BatchNormOptions untracked = Options();
  untracked.track_running_stats = false;
  EXPECT_THAT(std::string(CheckForwards(untracked, forwards).message()),
              StartsWith("batch norm: running mean has 2"));
}

TEST(CheckBackwardsTest, TakesMemoryThatFits) {
  LayerTensors memory = MakeMemory();
  BatchNorm::BackwardBuffers backwards = BackwardsOf(memory);
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
  backwards.dx = memory.dy.buffer();  // In place.
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
  backwards.relu = false;
  backwards.y = memory.dx.buffer();  // Not used.
  backwards.dresidual = Buffer();
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
  backwards.dx = memory.dx.buffer();
  backwards.dresidual = memory.dy.buffer();
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
}

TEST(CheckBackwardsTest, TakesAnEmptyBatchWithoutMemory) {
  LayerTensors memory = MakeMemory();
  BatchNorm::BackwardBuffers backwards = BackwardsOf(memory);
  backwards.shape.n = 0;
  backwards.x = backwards.y = backwards.dy =
      ConstBuffer(nullptr, 0, DataType::kBFloat16);
  backwards.dx = backwards.dresidual = Buffer();
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
}

TEST(CheckBackwardsTest, NamesWhatDoesNotFit) {
  ExpectRefusals<BatchNorm::BackwardBuffers>(
      BackwardsOf, CheckBackwards,
      {
          {[](auto& b) { b.shape.c = 1; }, "shape has 1 channels"},
          {[](auto& b) { b.shape.layout = Layout::kNchw16c; },
           "shape has 2 channels in layout nchw16c, must have a multiple of "
           "16"},
          {[](auto& b) { b.x.count = 0; }, "x has 0"},
          {[](auto& b) { b.y = ConstBuffer(); }, "y has 0"},
          {[](auto& b) { b.dy.type = DataType::kFloat32; }, "dy is float32"},
          {[](auto& b) { b.dx = Buffer(); }, "dx has 0"},
          {[](auto& b) { b.dresidual.count = 7; }, "dresidual has 7"},
          {[](auto& b) { b.weight = ConstBuffer(); }, "weight has 0"},
          {[](auto& b) { b.dweight.count = 1; }, "dweight has 1"},
          {[](auto& b) { b.dbias.type = DataType::kFloat64; },
           "dbias is float64"},
          {[](auto& b) { b.saved = ConstBuffer(); }, "saved has 0"},
      });
}

// A buffer of a call: its size, and a function that moves it.
template <typename Call>
struct Slot {
  std::string name;
  int64_t bytes;
  std::function<void(Call&, std::byte*)> move;
};

template <typename Call, typename AnyBuffer>
Slot<Call> SlotOf(std::string name, AnyBuffer Call::*member, int64_t bytes) {
  return {std::move(name), bytes,
          [member](Call& call, std::byte* to) { (call.*member).data = to; }};
}

constexpr int64_t kActivationBytes = 2 * kShape.size();
constexpr int64_t kParameterBytes = 4 * kChannels;
constexpr int64_t kSavedBytes = 32;

// The buffers that a call writes come first.
std::vector<Slot<BatchNorm::ForwardBuffers>> ForwardSlots() {
  using Call = BatchNorm::ForwardBuffers;
  return {SlotOf("y", &Call::y, kActivationBytes),
          SlotOf("saved", &Call::saved, kSavedBytes),
          {"running mean", kParameterBytes,
           [](Call& call, std::byte* to) { call.running.mean.data = to; }},
          {"running variance", kParameterBytes,
           [](Call& call, std::byte* to) { call.running.variance.data = to; }},
          {"the count of batches", 8,
           [](Call& call, std::byte* to) {
             call.running.batches = reinterpret_cast<int64_t*>(to);
           }},
          SlotOf("x", &Call::x, kActivationBytes),
          SlotOf("residual", &Call::residual, kActivationBytes),
          SlotOf("weight", &Call::weight, kParameterBytes),
          SlotOf("bias", &Call::bias, kParameterBytes)};
}
constexpr size_t kForwardWritten = 5;

std::vector<Slot<BatchNorm::BackwardBuffers>> BackwardSlots() {
  using Call = BatchNorm::BackwardBuffers;
  return {SlotOf("dx", &Call::dx, kActivationBytes),
          SlotOf("dresidual", &Call::dresidual, kActivationBytes),
          SlotOf("dweight", &Call::dweight, kParameterBytes),
          SlotOf("dbias", &Call::dbias, kParameterBytes),
          SlotOf("x", &Call::x, kActivationBytes),
          SlotOf("y", &Call::y, kActivationBytes),
          SlotOf("dy", &Call::dy, kActivationBytes),
          SlotOf("weight", &Call::weight, kParameterBytes),
          SlotOf("saved", &Call::saved, kSavedBytes)};
}
constexpr size_t kBackwardWritten = 4;

// Moves each of the first `written` slots onto each other slot: to the same
// place, which only the pairs in `may_be` allow; onto its last bytes; and
// directly after them. The memory is not accessed.
template <typename Call>
void ExpectOverlapsRefused(
    const Call& start, const std::vector<Slot<Call>>& slots, size_t written,
    const std::set<std::pair<std::string, std::string>>& may_be,
    const std::function<absl::Status(const Call&)>& check) {
  constexpr int64_t kStride = 256;
  constexpr int64_t kUnit = 16;  // Keeps every alignment.
  alignas(kUnit) std::byte arena[9 * kStride];
  ASSERT_LE(slots.size() * kStride, sizeof(arena));
  Call apart = start;
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].move(apart, arena + i * kStride);
  }
  ASSERT_THAT(check(apart), IsOk());
  for (size_t w = 0; w < written; ++w) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i == w) continue;
      const auto refused = StatusIs(
          absl::StatusCode::kInvalidArgument,
          AnyOf("batch norm: " + slots[w].name + " overlaps " + slots[i].name,
                "batch norm: " + slots[i].name + " overlaps " + slots[w].name));
      std::byte* const place = arena + i * kStride;
      Call call = apart;
      slots[w].move(call, place);
      if (may_be.contains({slots[w].name, slots[i].name})) {
        EXPECT_THAT(check(call), IsOk());
      } else {
        EXPECT_THAT(check(call), refused);
      }
      const int64_t last = (slots[i].bytes - 1) / kUnit * kUnit;
      slots[w].move(call, place + last);
      EXPECT_THAT(check(call), refused);
      slots[w].move(call, place + last + kUnit);
      EXPECT_THAT(check(call), IsOk());
    }
  }
}

TEST(CheckForwardsTest, RefusesOutputsOverOtherMemory) {
  LayerTensors memory = MakeMemory();
  ExpectOverlapsRefused<BatchNorm::ForwardBuffers>(
      ForwardsOf(memory), ForwardSlots(), kForwardWritten,
      {{"y", "x"}, {"y", "residual"}},
      [](const auto& call) { return CheckForwards(Options(), call); });
}

TEST(CheckBackwardsTest, RefusesOutputsOverOtherMemory) {
  LayerTensors memory = MakeMemory();
  ExpectOverlapsRefused<BatchNorm::BackwardBuffers>(
      BackwardsOf(memory), BackwardSlots(), kBackwardWritten,
      {{"dx", "dy"}, {"dresidual", "dy"}},
      [](const auto& call) { return CheckBackwards(Options(), call); });
}

// Each of the two outputs by itself may be in dy's memory.
TEST(CheckBackwardsTest, RefusesTwoOutputsInOnePlace) {
  LayerTensors memory = MakeMemory();
  BatchNorm::BackwardBuffers backwards = BackwardsOf(memory);
  backwards.dx = memory.dy.buffer();
  backwards.dresidual = memory.dy.buffer();
  EXPECT_THAT(CheckBackwards(Options(), backwards),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "batch norm: dresidual overlaps dx"));
}

}  // namespace
}  // namespace lockstep
