// What tests on the CPU share: host activations of any type, set and read as
// float64, between guard zones; what a call reads; a layer's memory; and the
// cases that are gone through.
#ifndef LOCKSTEP_SYNCBN_CPU_TEST_ACTIVATIONS_H_
#define LOCKSTEP_SYNCBN_CPU_TEST_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// 2^-53, 2^-24, 2^-11, 2^-8: how far rounding to `type` moves a number,
// relative to it.
double UnitRoundoff(DataType type);
// The smallest positive number of `type`.
double SmallestNumber(DataType type);

// Elements of one type, filled with a pattern, with guard zones before and
// after. Aligned to the elements alone, as kernels must take them.
class GuardedArray {
 public:
  GuardedArray(int64_t size, DataType type);

  int64_t size() const { return size_; }
  DataType type() const { return type_; }
  Buffer buffer() { return {data(), size_, type_}; }
  ConstBuffer buffer() const { return {data(), size_, type_}; }
  std::byte* data() { return bytes_.data() + offset_; }
  const std::byte* data() const { return bytes_.data() + offset_; }

  void Set(int64_t i, double value);  // Rounded to the type.
  double Get(int64_t i) const;
  // Whether nothing was written outside of the elements.
  bool GuardsAreIntact() const;
  // Whether all elements have the same bits.
  bool SameBits(const GuardedArray& other) const;

 private:
  int64_t size_;
  DataType type_;
  int64_t offset_;
  std::vector<std::byte> bytes_;
};

// Activations of `shape`. Channel c has values that are spread evenly over
// [mean - 1, mean + 1], where `mean` is `center` plus a part of c.
struct TestActivations {
  TestActivations(const ActivationShape& shape, DataType type)
      : shape(shape), array(shape.size(), type) {}
  TestActivations(const ActivationShape& shape, DataType type, uint64_t seed,
                  double center);

  // Where sample n, channel c, pixel i is.
  int64_t Index(int64_t n, int64_t c, int64_t i) const;
  // Values of channel c, in the order of n and i.
  std::vector<double> Channel(int64_t c) const;

  ActivationShape shape;
  GuardedArray array;
};

// An array of parameters, evenly spread over [low, high].
GuardedArray TestParameters(int64_t size, DataType type, uint64_t seed,
                            double low, double high);

// A StatisticsRecord of `channels` for activations of `type`, aligned to 16,
// with a guard zone after it.
class TestRecord {
 public:
  TestRecord(int64_t channels, DataType type);

  const StatisticsRecord& layout() const { return layout_; }
  std::byte* data() { return reinterpret_cast<std::byte*>(blocks_.data()); }
  const std::byte* data() const {
    return reinterpret_cast<const std::byte*>(blocks_.data());
  }

  int64_t count() const;
  double mean(int64_t c) const { return Get(layout_.mean_offset(), c); }
  // M2 or the inverse deviation.
  double second(int64_t c) const { return Get(layout_.second_offset(), c); }
  void SetCount(int64_t count);
  void SetMean(int64_t c, double value) {
    Set(layout_.mean_offset(), c, value);
  }
  void SetSecond(int64_t c, double value) {
    Set(layout_.second_offset(), c, value);
  }
  bool GuardIsIntact() const;
  bool SameBits(const TestRecord& other) const;

 private:
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  double Get(int64_t offset, int64_t c) const;
  void Set(int64_t offset, int64_t c, double value);

  StatisticsRecord layout_;
  std::vector<Block> blocks_;
};

// Sets the count, and means and inverse deviations that differ by channel.
void FillRecord(int64_t count, TestRecord& record);

// What a backward call reads. A third of y is negative, some of it zero, and
// one is NaN.
struct BackwardInputs {
  BackwardInputs(const ActivationShape& shape, DataType type);

  BatchNormKernels::BackwardCall Call(bool relu, bool affine = true) const {
    BatchNormKernels::BackwardCall call;
    call.shape = x.shape;
    call.relu = relu;
    call.x = x.array.buffer();
    call.dy = dy.array.buffer();
    call.saved = saved.data();
    if (relu) call.y = y.array.buffer();
    if (affine) call.weight = weight.buffer();
    return call;
  }
  double g(bool relu, int64_t at) const {
    return relu && y.array.Get(at) <= 0 ? 0 : dy.array.Get(at);
  }

  TestActivations x;
  TestActivations y;
  TestActivations dy;
  GuardedArray weight;
  GuardedArray sums;
  TestRecord saved;
};

// Every layout and type, for C in {1, 3, 63, 64, 65, 130}, with few pixels and
// many, one sample, several and none.
struct ActivationCase {
  ActivationShape shape;
  DataType type;
};
std::vector<ActivationCase> AllActivationCases();
// Such as are cut into several segments and shared by threads.
std::vector<ActivationCase> LargeActivationCases();
std::string Name(const ActivationCase& test_case);

// How a layer is called.
struct LayerCall {
  bool training = true;
  bool relu = false;
  bool residual = false;
};

// One float layer's memory, forward and backward: activations, parameters and
// running statistics that are not zero, and outputs that are a pattern.
struct LayerStep {
  LayerStep(const BatchNormOptions& options, const ActivationShape& shape,
            DataType type)
      : options(options),
        x(shape, type, /*seed=*/1, /*center=*/0.25),
        residual(shape, type, /*seed=*/2, /*center=*/0),
        dy(shape, type, /*seed=*/3, /*center=*/0.1),
        y(shape, type),
        dx(shape, type),
        dresidual(shape, type),
        weight(TestParameters(Affine(), DataType::kFloat32, 4, 0.5, 1.5)),
        bias(TestParameters(Affine(), DataType::kFloat32, 5, -0.5, 0.5)),
        dweight(Affine(), DataType::kFloat32),
        dbias(Affine(), DataType::kFloat32),
        mean(TestParameters(Tracked(), DataType::kFloat32, 6, 0, 1)),
        variance(TestParameters(Tracked(), DataType::kFloat32, 7, 0.5, 1)),
        saved(shape.c, type) {}

  int64_t Affine() const { return options.affine ? options.channels : 0; }
  int64_t Tracked() const {
    return options.track_running_stats ? options.channels : 0;
  }
  Buffer SavedBuffer() {
    return {saved.data(), saved.layout().size_bytes(), DataType::kUInt8};
  }

  BatchNorm::Forwards ForwardsOf(const LayerCall& call) {
    BatchNorm::Forwards forwards;
    forwards.shape = x.shape;
    forwards.training = call.training;
    forwards.relu = call.relu;
    forwards.x = x.array.buffer();
    if (call.residual) forwards.residual = residual.array.buffer();
    forwards.weight = weight.buffer();
    forwards.bias = bias.buffer();
    if (options.track_running_stats) {
      forwards.running = {mean.buffer(), variance.buffer(), &batches};
    }
    forwards.y = y.array.buffer();
    forwards.saved = SavedBuffer();
    return forwards;
  }

  BatchNorm::Backwards BackwardsOf(const LayerCall& call) {
    BatchNorm::Backwards backwards;
    backwards.shape = x.shape;
    backwards.training = call.training;
    backwards.relu = call.relu;
    backwards.x = x.array.buffer();
    backwards.y = y.array.buffer();
    backwards.dy = dy.array.buffer();
    backwards.weight = weight.buffer();
    backwards.saved = SavedBuffer();
    backwards.dweight = dweight.buffer();
    backwards.dbias = dbias.buffer();
    backwards.dx = dx.array.buffer();
    if (call.residual) backwards.dresidual = dresidual.array.buffer();
    return backwards;
  }

  absl::Status Run(BatchNorm& norm, const LayerCall& call) {
    absl::Status status = norm.Forward(ForwardsOf(call));
    if (!status.ok()) return status;
    int ready = 0;
    status = norm.Backward(BackwardsOf(call), [&] { ++ready; });
    if (status.ok() && ready != 1) {
      return absl::InternalError("gradients_ready not called once");
    }
    return status;
  }

  BatchNormOptions options;
  TestActivations x, residual, dy, y, dx, dresidual;
  GuardedArray weight, bias, dweight, dbias, mean, variance;
  TestRecord saved;
  int64_t batches = 3;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_TEST_ACTIVATIONS_H_
