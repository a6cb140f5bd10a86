// The code that all kernels share: checks of the memory of a call, the effect
// of a batch on the running statistics, and the passes without other ranks.
#include "syncbn/batch_norm_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

constexpr uintptr_t kRecordAlignment = 16;

absl::Status Wrong(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("batch norm: ", name, " ", what));
}

// A buffer of a call and its expected properties.
struct ExpectedBuffer {
  absl::string_view name;
  ConstBuffer buffer;
  int64_t count;
  DataType type;
  bool may_be_empty = false;
};

absl::Status CheckBuffer(const ExpectedBuffer& expected) {
  const auto& [name, buffer, count, type, may_be_empty] = expected;
  if (may_be_empty && buffer.count == 0) return absl::OkStatus();
  if (buffer.count != count) {
    return Wrong(name, absl::StrCat("has ", buffer.count,
                                    " elements, must have ", count));
  }
  if (count == 0) return absl::OkStatus();
  if (buffer.type != type) {
    return Wrong(
        name, absl::StrCat("is ", Name(buffer.type), ", must be ", Name(type)));
  }
  if (buffer.data == nullptr) return Wrong(name, "is null");
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.data);
  if (address % static_cast<uintptr_t>(SizeOf(type)) != 0) {
    return Wrong(name, "is not aligned to its elements");
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(std::span<const ExpectedBuffer> all) {
  for (const ExpectedBuffer& expected : all) {
    LOCKSTEP_RETURN_IF_ERROR(CheckBuffer(expected));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const BatchNormOptions& options,
                        const ActivationShape& shape, DataType type) {
  if (shape.c != options.channels) {
    return Wrong("shape", absl::StrCat("has ", shape.c, " channels, the layer ",
                                       options.channels));
  }
  if (shape.n < 0 || shape.hw < 1) {
    return Wrong("shape", absl::StrCat("has n = ", shape.n, " and hw = ",
                                       shape.hw, ", must be at least 0 and 1"));
  }
  if (shape.layout == Layout::kNchw16c && shape.c % kChannelBlock != 0) {
    return Wrong("shape",
                 absl::StrCat("has ", shape.c, " channels in layout ",
                              Name(shape.layout), ", must have a multiple of ",
                              kChannelBlock));
  }
  if (!IsActivationType(type)) {
    return Wrong("x", absl::StrCat("is ", Name(type), ", must be a float"));
  }
  const int64_t largest = std::numeric_limits<int64_t>::max() / SizeOf(type);
  if (shape.hw > largest / shape.c / std::max<int64_t>(shape.n, 1)) {
    return Wrong("shape", absl::StrCat("has n = ", shape.n, ", c = ", shape.c,
                                       " and hw = ", shape.hw,
                                       ", of more than 2^63 - 1 bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckSaved(const BatchNormOptions& options, DataType type,
                        const ConstBuffer& saved) {
  const StatisticsRecord record = RecordOf(options.channels, type);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer({"saved", saved, record.size_bytes(), DataType::kUInt8}));
  if (reinterpret_cast<uintptr_t>(saved.data) % kRecordAlignment != 0) {
    return Wrong("saved", "is not aligned to 16 bytes");
  }
  return absl::OkStatus();
}

// A buffer of a call and the range of its bytes.
struct MemoryRange {
  MemoryRange(absl::string_view name, const ConstBuffer& buffer)
      : name(name),
        begin(reinterpret_cast<uintptr_t>(buffer.data)),
        end(begin + static_cast<uintptr_t>(buffer.size_bytes())) {}

  bool is_empty() const { return begin == end; }
  bool Overlaps(const MemoryRange& other) const {
    return !is_empty() && !other.is_empty() && begin < other.end &&
           other.begin < end;
  }
  bool Is(const MemoryRange& other) const {
    return begin == other.begin && end == other.end;
  }

  absl::string_view name;
  uintptr_t begin;
  uintptr_t end;
};

// A buffer that a call writes, with the names of the buffers whose memory it
// may share.
struct OutputRange : MemoryRange {
  OutputRange(absl::string_view name, const ConstBuffer& buffer,
              absl::string_view may_be = {}, absl::string_view or_be = {})
      : MemoryRange(name, buffer), may_be{may_be, or_be} {}

  bool MayShare(const MemoryRange& other) const {
    return Is(other) && (other.name == may_be[0] || other.name == may_be[1]);
  }

  absl::string_view may_be[2];
};

// Checks that no written buffer overlaps another buffer of the call.
absl::Status CheckOverlaps(std::span<const OutputRange> written,
                           std::span<const MemoryRange> read) {
  const auto check = [](const OutputRange& a, const MemoryRange& b) {
    if (!a.Overlaps(b) || a.MayShare(b)) return absl::OkStatus();
    return Wrong(a.name, absl::StrCat("overlaps ", b.name));
  };
  for (size_t i = 0; i < written.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      LOCKSTEP_RETURN_IF_ERROR(check(written[i], written[j]));
    }
    for (const MemoryRange& place : read) {
      LOCKSTEP_RETURN_IF_ERROR(check(written[i], place));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOverlaps(const BatchNorm::ForwardBuffers& buffers) {
  const RunningStatistics& running = buffers.running;
  const ConstBuffer batches(running.batches, running.tracked() ? 1 : 0,
                            DataType::kInt64);
  const OutputRange written[] = {{"y", buffers.y, "x", "residual"},
                                 {"saved", buffers.saved},
                                 {"running mean", running.mean},
                                 {"running variance", running.variance},
                                 {"the count of batches", batches}};
  const MemoryRange read[] = {{"x", buffers.x},
                              {"residual", buffers.residual},
                              {"weight", buffers.weight},
                              {"bias", buffers.bias}};
  return CheckOverlaps(written, read);
}

absl::Status CheckOverlaps(const BatchNorm::BackwardBuffers& buffers) {
  const OutputRange written[] = {{"dx", buffers.dx, "dy"},
                                 {"dresidual", buffers.dresidual, "dy"},
                                 {"dweight", buffers.dweight},
                                 {"dbias", buffers.dbias}};
  const MemoryRange read[] = {{"x", buffers.x},
                              {"y", buffers.relu ? buffers.y : ConstBuffer()},
                              {"dy", buffers.dy},
                              {"weight", buffers.weight},
                              {"saved", buffers.saved}};
  return CheckOverlaps(written, read);
}

}  // namespace

absl::Status CheckForwards(const BatchNormOptions& options,
                           const BatchNorm::ForwardBuffers& buffers) {
  const ActivationShape& shape = buffers.shape;
  const DataType type = buffers.x.type;
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(options, shape, type));
  const DataType statistics = StatisticsTypeOf(type);
  const int64_t weights = options.affine ? options.channels : 0;
  const int64_t tracked = options.track_running_stats ? options.channels : 0;
  const RunningStatistics& running = buffers.running;
  const ExpectedBuffer expected[] = {
      {"x", buffers.x, shape.size(), type},
      {"y", buffers.y, shape.size(), type},
      {"residual", buffers.residual, shape.size(), type, /*may_be_empty=*/true},
      {"weight", buffers.weight, weights, statistics},
      {"bias", buffers.bias, weights, statistics},
      {"running mean", running.mean, tracked, statistics},
      {"running variance", running.variance, tracked, statistics}};
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(expected));
  if (tracked > 0 && running.batches == nullptr) {
    return Wrong("the count of batches", "is null");
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckSaved(options, type, buffers.saved));
  return CheckOverlaps(buffers);
}

absl::Status CheckBackwards(const BatchNormOptions& options,
                            const BatchNorm::BackwardBuffers& buffers) {
  const ActivationShape& shape = buffers.shape;
  const DataType type = buffers.x.type;
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(options, shape, type));
  const DataType statistics = StatisticsTypeOf(type);
  const int64_t weights = options.affine ? options.channels : 0;
  const ExpectedBuffer expected[] = {
      {"x", buffers.x, shape.size(), type},
      // Only ReLU reads y.
      {"y", buffers.relu ? buffers.y : ConstBuffer(),
       buffers.relu ? shape.size() : 0, type},
      {"dy", buffers.dy, shape.size(), type},
      {"dx", buffers.dx, shape.size(), type},
      {"dresidual", buffers.dresidual, shape.size(), type,
       /*may_be_empty=*/true},
      {"weight", buffers.weight, weights, statistics},
      {"dweight", buffers.dweight, weights, statistics},
      {"dbias", buffers.dbias, weights, statistics}};
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffers(expected));
  LOCKSTEP_RETURN_IF_ERROR(CheckSaved(options, type, buffers.saved));
  return CheckOverlaps(buffers);
}

absl::Status BatchNormKernels::ForwardLocal(const NormalizeCall& call,
                                            const MergeOptions& options,
                                            std::byte* record) {
  LOCKSTEP_RETURN_IF_ERROR(ComputeMoments(call.shape, call.x, record));
  LOCKSTEP_RETURN_IF_ERROR(
      Merge({RecordOf(call.shape.c, call.x.type), record,
             /*ranks=*/1, options, call.running, call.saved.bytes()}));
  return call.shape.n == 0 ? absl::OkStatus() : Normalize(call);
}

absl::Status BatchNormKernels::BackwardLocal(
    const BackwardCall& call, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(BackwardReduce(call));
  gradients_ready();
  return call.shape.n == 0 ? absl::OkStatus() : BackwardInput(call);
}

absl::Status OneValueError() {
  return absl::InvalidArgumentError(
      "batch norm: one value per channel in the whole batch has no variance to "
      "normalise with");
}

MergeOptions MergeOptionsFor(const BatchNormOptions& options,
                             const RunningStatistics& running) {
  const BatchNormSemantics& semantics = options.semantics;
  MergeOptions merge;
  merge.epsilon = options.epsilon;
  merge.unbiased_running_variance = semantics.unbiased_running_variance;
  merge.refuses_one_value = semantics.refuses_one_value;
  if (running.tracked()) {
    merge.weight_of_batch = WeightOfBatch(options, *running.batches + 1);
  }
  return merge;
}

absl::Status CountBatch(const BatchNormOptions& options, int64_t values,
                        const RunningStatistics& running) {
  if (values == 1 && options.semantics.refuses_one_value) {
    return OneValueError();
  }
  if (running.tracked() && values > 0) ++*running.batches;
  return absl::OkStatus();
}

}  // namespace lockstep
