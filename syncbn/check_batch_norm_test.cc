// Tests that a call whose memory does not fit is refused, by name.
#include "syncbn/check_batch_norm.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/batch_norm_options.h"

namespace lockstep {
namespace {

using testing::StartsWith;

constexpr int64_t kChannels = 2;
constexpr ActivationShape kShape = {.n = 3, .c = kChannels, .hw = 5};

// Memory of a layer with weights and running statistics, for bfloat16.
struct Memory {
  std::vector<BFloat16> x = std::vector<BFloat16>(kShape.size());
  std::vector<BFloat16> y = x, dy = x, dx = x, residual = x, dresidual = x;
  std::vector<float> weight = std::vector<float>(kChannels);
  std::vector<float> bias = weight, dweight = weight, dbias = weight;
  std::vector<float> mean = weight, variance = weight;
  int64_t batches = 0;
  alignas(16) std::byte saved[64];

  Buffer Saved() {
    const StatisticsRecord record = {.channels = kChannels,
                                     .type = DataType::kFloat32};
    return {saved, record.size_bytes(), DataType::kUInt8};
  }
  BatchNorm::Forwards Forwards() {
    return {.shape = kShape,
            .x = x,
            .residual = residual,
            .weight = weight,
            .bias = bias,
            .running = {mean, variance, &batches},
            .y = y,
            .saved = Saved()};
  }
  BatchNorm::Backwards Backwards() {
    return {.shape = kShape,
            .relu = true,
            .x = x,
            .y = y,
            .dy = dy,
            .weight = weight,
            .saved = Saved(),
            .dweight = dweight,
            .dbias = dbias,
            .dx = dx,
            .dresidual = dresidual};
  }
};

BatchNormOptions Options() { return {.channels = kChannels}; }

TEST(CheckForwardsTest, TakesMemoryThatFits) {
  Memory memory;
  BatchNorm::Forwards forwards = memory.Forwards();
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
  forwards.residual = ConstBuffer();
  forwards.y = memory.x;  // In place.
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
}

TEST(CheckForwardsTest, TakesAnEmptyBatchWithoutMemory) {
  Memory memory;
  BatchNorm::Forwards forwards = memory.Forwards();
  forwards.shape.n = 0;
  forwards.x = ConstBuffer(nullptr, 0, DataType::kBFloat16);
  forwards.y = Buffer();
  forwards.residual = ConstBuffer();
  EXPECT_THAT(CheckForwards(Options(), forwards), IsOk());
}

TEST(CheckForwardsTest, NamesWhatDoesNotFit) {
  struct Case {
    std::function<void(BatchNorm::Forwards&, Memory&)> change;
    std::string says;
  };
  const Case cases[] = {
      {[](auto& f, auto&) { f.shape.c = 3; }, "shape has 3 channels"},
      {[](auto& f, auto&) { f.shape.n = -1; }, "shape has n = -1"},
      {[](auto& f, auto&) { f.shape.hw = 0; }, "shape has n = 3 and hw = 0"},
      {[](auto& f, auto&) { f.x.type = DataType::kInt32; }, "x is int32"},
      {[](auto& f, auto&) { f.x.count = 29; }, "x has 29 elements, must have"},
      {[](auto& f, auto&) { f.x.data = nullptr; }, "x is null"},
      {[](auto& f, auto&) {
         f.x.data = static_cast<const std::byte*>(f.x.data) + 1;
       },
       "x is not aligned"},
      {[](auto& f, auto&) { f.y.count = 31; }, "y has 31"},
      {[](auto& f, auto&) { f.y.type = DataType::kFloat16; }, "y is float16"},
      {[](auto& f, auto&) { f.residual.count = 1; }, "residual has 1"},
      {[](auto& f, auto&) { f.weight = ConstBuffer(); }, "weight has 0"},
      {[](auto& f, auto&) { f.weight.type = DataType::kBFloat16; },
       "weight is bfloat16, must be float32"},
      {[](auto& f, auto&) { f.bias.count = 3; }, "bias has 3"},
      {[](auto& f, auto&) { f.running.mean.count = 1; }, "running mean has 1"},
      {[](auto& f, auto&) { f.running.variance = Buffer(); },
       "running variance has 0"},
      {[](auto& f, auto&) { f.running.batches = nullptr; },
       "the count of batches is null"},
      {[](auto& f, auto&) { f.saved.count = 31; }, "saved has 31"},
      {[](auto& f, auto&) { f.saved.data = f.saved.bytes() + 8; },
       "saved is not aligned to 16"},
  };
  for (const Case& c : cases) {
    Memory memory;
    BatchNorm::Forwards forwards = memory.Forwards();
    c.change(forwards, memory);
    const absl::Status status = CheckForwards(Options(), forwards);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()),
                StartsWith("batch norm: " + c.says));
  }
}

TEST(CheckForwardsTest, RefusesWhatTheLayerLacks) {
  Memory memory;
  const BatchNorm::Forwards forwards = memory.Forwards();
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
  Memory memory;
  BatchNorm::Backwards backwards = memory.Backwards();
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
  backwards.dx = memory.dy;  // In place.
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
  backwards.relu = false;
  backwards.y = ConstBuffer();
  backwards.dresidual = Buffer();
  EXPECT_THAT(CheckBackwards(Options(), backwards), IsOk());
}

TEST(CheckBackwardsTest, NamesWhatDoesNotFit) {
  struct Case {
    std::function<void(BatchNorm::Backwards&, Memory&)> change;
    std::string says;
  };
  const Case cases[] = {
      {[](auto& b, auto&) { b.shape.c = 1; }, "shape has 1 channels"},
      {[](auto& b, auto&) { b.x.count = 0; }, "x has 0"},
      {[](auto& b, auto&) { b.y = ConstBuffer(); }, "y has 0"},
      {[](auto& b, auto&) { b.dy.type = DataType::kFloat32; }, "dy is float32"},
      {[](auto& b, auto&) { b.dx = Buffer(); }, "dx has 0"},
      {[](auto& b, auto&) { b.dresidual.count = 7; }, "dresidual has 7"},
      {[](auto& b, auto&) { b.weight = ConstBuffer(); }, "weight has 0"},
      {[](auto& b, auto&) { b.dweight.count = 1; }, "dweight has 1"},
      {[](auto& b, auto&) { b.dbias.type = DataType::kFloat64; },
       "dbias is float64"},
      {[](auto& b, auto&) { b.saved = ConstBuffer(); }, "saved has 0"},
      {[](auto& b, auto& m) {
         b.dx = m.dy;
         b.dresidual = m.dy;
       },
       "dresidual is the memory of dx"},
  };
  for (const Case& c : cases) {
    Memory memory;
    BatchNorm::Backwards backwards = memory.Backwards();
    c.change(backwards, memory);
    const absl::Status status = CheckBackwards(Options(), backwards);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.says;
    EXPECT_THAT(std::string(status.message()),
                StartsWith("batch norm: " + c.says));
  }
}

}  // namespace
}  // namespace lockstep
