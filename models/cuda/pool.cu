#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/pool.h"
#include "models/model.h"

namespace lockstep {
namespace {

constexpr int kThreads = kThreadsOver;

// A PoolShape with 32-bit numbers.
struct Windows {
  int c, h, w;       // Of x.
  int out_h, out_w;  // Of y.
  int kernel_h, kernel_w, stride_h, stride_w, padding;
  int x_size, y_size;
};

// The position of an element in a tensor of channels last.
struct Position {
  int image, row, column, channel;
};

__device__ inline Position PositionOf(int index, int c, int h, int w) {
  const int pixel = index / c;
  const int line = pixel / w;
  return {line / h, line % h, pixel % w, index % c};
}

// The elements [first, end) of a line that a window covers; `start` is the
// element at the kernel's first position, which may be in the padding.
struct Range {
  int start, first, end;
};

__device__ inline Range Covered(int window, int kernel, int stride, int padding,
                                int size) {
  const int start = window * stride - padding;
  return {start, start < 0 ? 0 : start,
          start + kernel > size ? size : start + kernel};
}

// The windows [first, end) that cover an element.
__device__ inline Range Covering(int element, int kernel, int stride,
                                 int padding, int windows) {
  const int last = (element + padding) / stride;
  const int before = element + padding - kernel;  // Does not cover it.
  const int first = before < 0 ? 0 : before / stride + 1;
  return {0, first, last < windows ? last + 1 : windows};
}

template <typename T, bool kMaximum>
__global__ void __launch_bounds__(kThreads)
    PoolForwardKernel(Windows of, const T* x, T* y, uint8_t* winners) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const float scale = 1.0f / static_cast<float>(of.kernel_h * of.kernel_w);
  for (; i < of.y_size; i += step) {
    const Position at =
        PositionOf(static_cast<int>(i), of.c, of.out_h, of.out_w);
    const Range rows =
        Covered(at.row, of.kernel_h, of.stride_h, of.padding, of.h);
    const Range columns =
        Covered(at.column, of.kernel_w, of.stride_w, of.padding, of.w);
    float sum = 0;
    float highest = 0;
    int winner = -1;
    for (int row = rows.first; row < rows.end; ++row) {
      const T* line = x + (int64_t{at.image} * of.h + row) * of.w * of.c;
      for (int column = columns.first; column < columns.end; ++column) {
        const float value = ToFloat(line[column * of.c + at.channel]);
        sum += value;
        // The last comparison is true for NaN alone. No number is above a NaN.
        if (kMaximum && (winner < 0 || value > highest || value != value)) {
          highest = value;
          winner = (row - rows.start) * of.kernel_w + column - columns.start;
        }
      }
    }
    y[i] = RoundTo<T>(kMaximum ? highest : sum * scale);
    if (kMaximum && winners != nullptr) {
      winners[i] = static_cast<uint8_t>(winner);
    }
  }
}

template <typename T, bool kMaximum>
__global__ void __launch_bounds__(kThreads)
    PoolBackwardKernel(Windows of, const T* dy, const uint8_t* winners, T* dx) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const float scale = 1.0f / static_cast<float>(of.kernel_h * of.kernel_w);
  for (; i < of.x_size; i += step) {
    const Position at = PositionOf(static_cast<int>(i), of.c, of.h, of.w);
    const Range rows =
        Covering(at.row, of.kernel_h, of.stride_h, of.padding, of.out_h);
    const Range columns =
        Covering(at.column, of.kernel_w, of.stride_w, of.padding, of.out_w);
    float sum = 0;
    for (int row = rows.first; row < rows.end; ++row) {
      for (int column = columns.first; column < columns.end; ++column) {
        const int window =
            ((at.image * of.out_h + row) * of.out_w + column) * of.c +
            at.channel;
        const int own =
            (at.row + of.padding - row * of.stride_h) * of.kernel_w +
            at.column + of.padding - column * of.stride_w;
        if (!kMaximum || winners[window] == own) sum += ToFloat(dy[window]);
      }
    }
    dx[i] = RoundTo<T>(kMaximum ? sum : sum * scale);
  }
}

absl::Status Check(const PoolShape& shape) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostPositions = 256;  // The values of a uint8_t.
  const int64_t size = std::max(shape.x.size(), shape.y.size());
  if (size > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("pooling of ", size, " elements: the limit is ", kMost));
  }
  const int64_t positions = shape.kernel_h * shape.kernel_w;
  if (shape.maximum && positions > kMostPositions) {
    return absl::InvalidArgumentError(absl::StrCat("a maximum of ", positions,
                                                   " elements: the limit is ",
                                                   kMostPositions));
  }
  return absl::OkStatus();
}

Windows WindowsOf(const PoolShape& shape) {
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  return {.c = narrow(shape.x.c),
          .h = narrow(shape.x.h),
          .w = narrow(shape.x.w),
          .out_h = narrow(shape.y.h),
          .out_w = narrow(shape.y.w),
          .kernel_h = narrow(shape.kernel_h),
          .kernel_w = narrow(shape.kernel_w),
          .stride_h = narrow(shape.stride_h),
          .stride_w = narrow(shape.stride_w),
          .padding = narrow(shape.padding),
          .x_size = narrow(shape.x.size()),
          .y_size = narrow(shape.y.size())};
}

}  // namespace

absl::Status LoadPoolKernels() {
  return ForActivations([]<typename T>(T) {
    return LoadKernels(PoolForwardKernel<T, true>, PoolForwardKernel<T, false>,
                       PoolBackwardKernel<T, true>,
                       PoolBackwardKernel<T, false>);
  });
}

absl::Status PoolForward(const PoolShape& shape, const void* x, void* y,
                         uint8_t* winners, cudaStream_t stream) {
  if (absl::Status status = Check(shape); !status.ok()) return status;
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.y.size(), stream, "PoolForwardKernel launch",
                      shape.maximum ? PoolForwardKernel<T, true>
                                    : PoolForwardKernel<T, false>,
                      WindowsOf(shape), Elements<T>(x), Elements<T>(y),
                      winners);
  });
}

absl::Status PoolBackward(const PoolShape& shape, const void* dy,
                          const uint8_t* winners, void* dx,
                          cudaStream_t stream) {
  if (absl::Status status = Check(shape); !status.ok()) return status;
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.x.size(), stream, "PoolBackwardKernel launch",
                      shape.maximum ? PoolBackwardKernel<T, true>
                                    : PoolBackwardKernel<T, false>,
                      WindowsOf(shape), Elements<T>(dy), winners,
                      Elements<T>(dx));
  });
}

}  // namespace lockstep
