#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/sequence.h"

namespace lockstep {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreadsOver)
    EmbedKernel(SequenceShape shape, const T* patches, const float* token,
                const float* position, T* y) {
  const int64_t size = shape.length * shape.width;
  const int64_t count = shape.n * size;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const int64_t sample = i / size;
    const int64_t within = i - sample * size;
    // Each sample before this one, and this one, has one position less in x.
    const float x = within < shape.width
                        ? token[within]
                        : ToFloat(patches[i - (sample + 1) * shape.width]);
    y[i] = RoundTo<T>(x + position[within]);
  }
}

// A thread takes an element of a sequence, in all samples.
template <typename T>
__global__ void __launch_bounds__(kThreadsOver)
    EmbedBackwardKernel(SequenceShape shape, const T* dy, T* dpatches,
                        float* dtoken, float* dposition) {
  const int64_t size = shape.length * shape.width;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t within = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; within < size; within += step) {
    const bool is_token = within < shape.width;
    float sum = 0;
    for (int64_t sample = 0; sample < shape.n; ++sample) {
      const int64_t i = sample * size + within;
      const T gradient = dy[i];
      sum += ToFloat(gradient);
      if (!is_token && dpatches != nullptr) {
        dpatches[i - (sample + 1) * shape.width] = gradient;
      }
    }
    dposition[within] = sum;
    if (is_token) dtoken[within] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreadsOver)
    FirstPositionKernel(SequenceShape shape, const T* x, T* y) {
  const int64_t count = shape.n * shape.width;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const int64_t sample = i / shape.width;
    y[i] = x[i + sample * (shape.length - 1) * shape.width];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreadsOver)
    FirstPositionBackwardKernel(SequenceShape shape, const T* dy, T* dx) {
  const int64_t size = shape.length * shape.width;
  const int64_t count = shape.n * size;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const int64_t sample = i / size;
    const int64_t within = i - sample * size;
    dx[i] = within < shape.width ? dy[sample * shape.width + within]
                                 : RoundTo<T>(0);
  }
}

// Copies every element. to_heads: from the sequence, otherwise to it.
template <typename T, bool to_heads>
__global__ void __launch_bounds__(kThreadsOver)
    HeadsKernel(HeadShape shape, const T* from, T* to) {
  const int64_t part = shape.n * shape.heads * shape.length * shape.size;
  const int64_t count = shape.parts * part;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    // i counts in the order of the sequence.
    int64_t rest = i / shape.size;
    const int64_t element = i - rest * shape.size;
    const int64_t head = rest % shape.heads;
    rest /= shape.heads;
    const int64_t p = rest % shape.parts;
    rest /= shape.parts;
    const int64_t position = rest % shape.length;
    const int64_t sample = rest / shape.length;
    const int64_t at =
        p * shape.part_stride +
        ((sample * shape.heads + head) * shape.length + position) * shape.size +
        element;
    to[to_heads ? at : i] = from[to_heads ? i : at];
  }
}

int64_t CountOf(const HeadShape& shape) {
  return shape.n * shape.length * shape.parts * shape.heads * shape.size;
}

}  // namespace

absl::Status LoadSequenceKernels() {
  return ForActivations([]<typename T>(T) {
    return LoadKernels(EmbedKernel<T>, EmbedBackwardKernel<T>,
                       FirstPositionKernel<T>, FirstPositionBackwardKernel<T>,
                       HeadsKernel<T, true>, HeadsKernel<T, false>);
  });
}

absl::Status EmbedForward(const SequenceShape& shape, const void* patches,
                          const float* token, const float* position, void* y,
                          cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.n * shape.length * shape.width, stream,
                      "EmbedKernel launch", EmbedKernel<T>, shape,
                      Elements<T>(patches), token, position, Elements<T>(y));
  });
}

absl::Status EmbedBackward(const SequenceShape& shape, const void* dy,
                           void* dpatches, float* dtoken, float* dposition,
                           cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.length * shape.width, stream,
                      "EmbedBackwardKernel launch", EmbedBackwardKernel<T>,
                      shape, Elements<T>(dy), Elements<T>(dpatches), dtoken,
                      dposition);
  });
}

absl::Status FirstPositionForward(const SequenceShape& shape, const void* x,
                                  void* y, cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.n * shape.width, stream,
                      "FirstPositionKernel launch", FirstPositionKernel<T>,
                      shape, Elements<T>(x), Elements<T>(y));
  });
}

absl::Status FirstPositionBackward(const SequenceShape& shape, const void* dy,
                                   void* dx, cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(shape.n * shape.length * shape.width, stream,
                      "FirstPositionBackwardKernel launch",
                      FirstPositionBackwardKernel<T>, shape, Elements<T>(dy),
                      Elements<T>(dx));
  });
}

absl::Status SplitHeads(const HeadShape& shape, const void* sequence,
                        void* heads, cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(CountOf(shape), stream, "HeadsKernel launch",
                      HeadsKernel<T, true>, shape, Elements<T>(sequence),
                      Elements<T>(heads));
  });
}

absl::Status JoinHeads(const HeadShape& shape, const void* heads,
                       void* sequence, cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchOver(CountOf(shape), stream, "HeadsKernel launch",
                      HeadsKernel<T, false>, shape, Elements<T>(heads),
                      Elements<T>(sequence));
  });
}

}  // namespace lockstep
