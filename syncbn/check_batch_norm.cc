#include "syncbn/check_batch_norm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {
namespace {

constexpr uintptr_t kRecordAlignment = 16;

absl::Status Wrong(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("batch norm: ", name, " ", what));
}

absl::Status CheckBuffer(absl::string_view name, const ConstBuffer& buffer,
                         int64_t count, DataType type) {
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

// A buffer that may be left out.
absl::Status CheckOptional(absl::string_view name, const ConstBuffer& buffer,
                           int64_t count, DataType type) {
  if (buffer.count == 0) return absl::OkStatus();
  return CheckBuffer(name, buffer, count, type);
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

absl::Status CheckSaved(const BatchNormOptions& options, DataType statistics,
                        const ConstBuffer& saved) {
  const StatisticsRecord record = {.channels = options.channels,
                                   .type = statistics};
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("saved", saved, record.size_bytes(), DataType::kUInt8));
  if (reinterpret_cast<uintptr_t>(saved.data) % kRecordAlignment != 0) {
    return Wrong("saved", "is not aligned to 16 bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckRunning(const BatchNormOptions& options, DataType statistics,
                          const RunningStatistics& running) {
  const int64_t count = options.track_running_stats ? options.channels : 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("running mean", running.mean, count, statistics));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("running variance", running.variance, count, statistics));
  if (options.track_running_stats && running.batches == nullptr) {
    return Wrong("the count of batches", "is null");
  }
  return absl::OkStatus();
}

// A buffer of a call, and where its bytes are.
struct Place {
  Place(absl::string_view name, const ConstBuffer& buffer)
      : name(name),
        begin(reinterpret_cast<uintptr_t>(buffer.data)),
        end(begin + static_cast<uintptr_t>(buffer.size_bytes())) {}

  bool is_empty() const { return begin == end; }
  bool Overlaps(const Place& other) const {
    return !is_empty() && !other.is_empty() && begin < other.end &&
           other.begin < end;
  }
  bool Is(const Place& other) const {
    return begin == other.begin && end == other.end;
  }

  absl::string_view name;
  uintptr_t begin;
  uintptr_t end;
};

// A buffer that a call writes, and the names of those that it may be.
struct Written : Place {
  Written(absl::string_view name, const ConstBuffer& buffer,
          absl::string_view may_be = {}, absl::string_view or_be = {})
      : Place(name, buffer), may_be{may_be, or_be} {}

  bool MayBe(const Place& other) const {
    return Is(other) && (other.name == may_be[0] || other.name == may_be[1]);
  }

  absl::string_view may_be[2];
};

// Whether what is written overlaps nothing that is read or written too.
absl::Status CheckOverlaps(std::span<const Written> written,
                           std::span<const Place> read) {
  const auto check = [](const Written& a, const Place& b) {
    if (!a.Overlaps(b) || a.MayBe(b)) return absl::OkStatus();
    return Wrong(a.name, absl::StrCat("overlaps ", b.name));
  };
  for (size_t i = 0; i < written.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      LOCKSTEP_RETURN_IF_ERROR(check(written[i], written[j]));
    }
    for (const Place& place : read) {
      LOCKSTEP_RETURN_IF_ERROR(check(written[i], place));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOverlaps(const BatchNorm::Forwards& buffers) {
  const RunningStatistics& running = buffers.running;
  const ConstBuffer batches(running.batches, running.tracked() ? 1 : 0,
                            DataType::kInt64);
  const Written written[] = {{"y", buffers.y, "x", "residual"},
                             {"saved", buffers.saved},
                             {"running mean", running.mean},
                             {"running variance", running.variance},
                             {"the count of batches", batches}};
  const Place read[] = {{"x", buffers.x},
                        {"residual", buffers.residual},
                        {"weight", buffers.weight},
                        {"bias", buffers.bias}};
  return CheckOverlaps(written, read);
}

absl::Status CheckOverlaps(const BatchNorm::Backwards& buffers) {
  const Written written[] = {{"dx", buffers.dx, "dy"},
                             {"dresidual", buffers.dresidual, "dy"},
                             {"dweight", buffers.dweight},
                             {"dbias", buffers.dbias}};
  const Place read[] = {{"x", buffers.x},
                        {"y", buffers.relu ? buffers.y : ConstBuffer()},
                        {"dy", buffers.dy},
                        {"weight", buffers.weight},
                        {"saved", buffers.saved}};
  return CheckOverlaps(written, read);
}

}  // namespace

absl::Status CheckForwards(const BatchNormOptions& options,
                           const BatchNorm::Forwards& buffers) {
  const ActivationShape& shape = buffers.shape;
  const DataType type = buffers.x.type;
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(options, shape, type));
  const DataType statistics = StatisticsTypeOf(type);
  const int64_t weights = options.affine ? options.channels : 0;
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("x", buffers.x, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("y", buffers.y, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckOptional("residual", buffers.residual, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("weight", buffers.weight, weights, statistics));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("bias", buffers.bias, weights, statistics));
  LOCKSTEP_RETURN_IF_ERROR(CheckRunning(options, statistics, buffers.running));
  LOCKSTEP_RETURN_IF_ERROR(CheckSaved(options, statistics, buffers.saved));
  return CheckOverlaps(buffers);
}

absl::Status CheckBackwards(const BatchNormOptions& options,
                            const BatchNorm::Backwards& buffers) {
  const ActivationShape& shape = buffers.shape;
  const DataType type = buffers.x.type;
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(options, shape, type));
  const DataType statistics = StatisticsTypeOf(type);
  const int64_t weights = options.affine ? options.channels : 0;
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("x", buffers.x, shape.size(), type));
  if (buffers.relu) {
    LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("y", buffers.y, shape.size(), type));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("dy", buffers.dy, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(CheckBuffer("dx", buffers.dx, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckOptional("dresidual", buffers.dresidual, shape.size(), type));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("weight", buffers.weight, weights, statistics));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("dweight", buffers.dweight, weights, statistics));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBuffer("dbias", buffers.dbias, weights, statistics));
  LOCKSTEP_RETURN_IF_ERROR(CheckSaved(options, statistics, buffers.saved));
  return CheckOverlaps(buffers);
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
