// Memory of the tested device, between guards, with numbers in float64. The
// tests of kernels and of layers share this code.
#ifndef LOCKSTEP_SYNCBN_TESTING_DEVICE_TENSOR_H_
#define LOCKSTEP_SYNCBN_TESTING_DEVICE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// The functions by which tests reach the tested memory. They reach the host's
// memory until a test sets others (cuda/cuda_test_device.h).
struct TestDevice {
  std::byte* (*allocate)(size_t bytes);  // Aligned to 64.
  void (*free)(std::byte* memory);
  // Writes to memory that no enqueued work uses.
  void (*write)(std::byte* to, const void* from, size_t bytes);
  // Waits for all enqueued work, then reads.
  void (*read)(void* to, const std::byte* from, size_t bytes);
};
// Sets the device. Must be called before any memory is allocated. Returns true.
bool SetTestDevice(const TestDevice& device);

// Elements in the device's memory, `offset` elements after a boundary of 64
// bytes, with guards around them.
class DeviceTensor {
 public:
  // Holds `values`, rounded to `type`.
  DeviceTensor(DataType type, const std::vector<double>& values,
               int64_t offset = 0);
  // Holds NaN.
  DeviceTensor(DataType type, int64_t count, int64_t offset = 0);
  ~DeviceTensor();
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  // Returns the values that the constructor wrote.
  const std::vector<double>& values() const { return values_; }
  Buffer buffer() const;
  // Return the present contents. Fail the test if a guard has changed.
  std::vector<double> Read() const;
  std::string Bytes() const;

 private:
  DataType type_;
  std::vector<double> values_;
  size_t start_;  // The byte of the first element.
  std::string image_;
  std::byte* memory_;
};

// The fields of a statistics record.
struct RecordValues {
  int64_t count = 0;
  std::vector<double> mean;
  std::vector<double> second;
};
// Returns values that no kernel writes, for memory that a kernel must
// overwrite.
RecordValues UnwrittenRecord(int64_t channels);

// Records of statistics of `type` in the device's memory, one after the other.
// Their gaps are not zero.
class DeviceRecords {
 public:
  explicit DeviceRecords(const std::vector<RecordValues>& records,
                         DataType type = DataType::kFloat32);
  ~DeviceRecords();
  DeviceRecords(const DeviceRecords&) = delete;
  DeviceRecords& operator=(const DeviceRecords&) = delete;

  const StatisticsRecord& layout() const { return layout_; }
  std::byte* data() const { return memory_; }
  // Returns the first record, as a layer's `saved`.
  Buffer buffer() const {
    return {memory_, layout_.size_bytes(), DataType::kUInt8};
  }
  // Reads the first record after a kernel has written it. Fails the test if its
  // gaps are not zero, or if memory after the records has changed.
  RecordValues Read() const;

 private:
  StatisticsRecord layout_;
  std::vector<std::byte> image_;
  std::byte* memory_;
};

// The way in which a layer is called.
struct LayerCall {
  bool training = true;
  bool relu = false;
  bool residual = false;  // If true, dresidual is computed, too.
};

// One layer's memory: inputs with given numbers, and outputs with NaN.
struct LayerTensors {
  struct Values {
    std::vector<double> x, residual, dy, weight, bias;
    // The running statistics of every channel.
    double mean = 0;
    double variance = 1;
  };

  // x, residual and y lie `offset` elements after a boundary, the gradients of
  // activations `gradient_offset`, and arrays of channels `channel_offset`.
  LayerTensors(const BatchNormOptions& options, const ActivationShape& shape,
               DataType type, const Values& values, int64_t offset = 0,
               int64_t gradient_offset = 0, int64_t channel_offset = 0);

  // Return the arguments, with weights and running statistics if the layer has
  // them.
  BatchNorm::ForwardBuffers ForwardBuffers(const LayerCall& call);
  BatchNorm::BackwardBuffers BackwardBuffers(const LayerCall& call) const;
  // Runs Forward and then Backward, which must report exactly once that
  // gradients are ready.
  absl::Status Run(BatchNorm& layer, const LayerCall& call);

  const BatchNormOptions options;
  const ActivationShape shape;
  DeviceTensor x, residual, dy, y, dx, dresidual;
  DeviceTensor weight, bias, dweight, dbias, mean, variance;
  DeviceRecords saved;
  int64_t batches = 0;
};

// Returns `count` normally distributed numbers about `mean`.
std::vector<double> RandomValues(int64_t count, uint32_t seed, double mean = 0,
                                 double deviation = 1);

// Succeeds if |got[i] - want[i]| <= tolerance(i) for all i. got[i] must be NaN
// exactly where want[i] is NaN.
testing::AssertionResult AllNear(
    const std::vector<double>& got, const std::vector<double>& want,
    const std::function<double(size_t)>& tolerance);

// Returns "n=1 c=2 hw=3 nchw".
std::string Describe(const ActivationShape& shape);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_DEVICE_TENSOR_H_
