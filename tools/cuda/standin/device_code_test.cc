// What kernels see of the stand-in: indices, barriers, half floats, and the
// faults that it must find in broken kernels.
#include "tools/cuda/standin/device_code.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using standin::LastFault;
using testing::HasSubstr;

cudaLaunchConfig_t Shape(dim3 grid, dim3 block) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  return config;
}

template <typename... Parameters, typename... Arguments>
void RunKernel(const cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
               const Arguments&... arguments) {
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
}

// Device memory of n elements; a kernel that writes it needs no stream.
template <typename T>
class Memory {
 public:
  explicit Memory(size_t n) : size_(n) { cudaMalloc(&data_, n * sizeof(T)); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_ * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  T* data_ = nullptr;
  const size_t size_;
};

__global__ void CountVisits(int* visits) {
  const unsigned block =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread =
      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  // One device thread runs at a time.
  ++visits[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(LaunchTest, RunsEveryThreadOfEveryBlockOnce) {
  const Memory<int> visits(2 * 3 * 4 * 5 * 6 * 7);
  cudaMemset(visits.data(), 0, visits.Read().size() * sizeof(int));
  RunKernel(Shape(dim3(2, 3, 4), dim3(5, 6, 7)), CountVisits, visits.data());
  EXPECT_THAT(visits.Read(), testing::Each(1));
}

// Each thread reads what its neighbour, of either side, wrote before.
__global__ void Rotate(int* out, int step, bool wait) {
  __shared__ int place[64];
  place[threadIdx.x] = -1;
  __syncthreads();
  place[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (wait) __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = place[(threadIdx.x + step) % 64];
}

TEST(SyncThreadsTest, ShowsWhatOthersWroteBefore) {
  const Memory<int> out(128);
  const cudaLaunchConfig_t config = Shape(2, 64);
  for (const int step : {1, 63}) {
    RunKernel(config, Rotate, out.data(), step, true);
    for (int i = 0; i < 128; ++i) {
      EXPECT_EQ(out.Read()[i], (i + step) % 64) << i;
    }
  }
}

// The control: without the barrier, one of two blocks shows it, for either
// neighbour, since the blocks start their threads in opposite orders.
TEST(SyncThreadsTest, MissingBarrierShows) {
  const Memory<int> out(128);
  const cudaLaunchConfig_t config = Shape(2, 64);
  for (const int step : {1, 63}) {
    RunKernel(config, Rotate, out.data(), step, false);
    EXPECT_THAT(out.Read(), testing::Contains(-1)) << step;
  }
}

enum class Break { kNothing, kExitBeforeBarrier, kTwoBarriers };

__global__ void Broken(Break what) {
  if (what == Break::kExitBeforeBarrier && threadIdx.x >= 32) return;
  if (what == Break::kTwoBarriers && threadIdx.x == 7) {
    __syncthreads();
    return;
  }
  __syncthreads();
}

std::string FaultOf(Break what) {
  const cudaLaunchConfig_t config = Shape(3, 64);
  EXPECT_EQ(cudaLaunchKernelEx(&config, Broken, what), cudaSuccess);
  const cudaError_t error = cudaStreamSynchronize(nullptr);
  EXPECT_EQ(error,
            what == Break::kNothing ? cudaSuccess : cudaErrorLaunchFailure);
  EXPECT_EQ(cudaGetLastError(), error);
  return error == cudaSuccess ? "" : LastFault();
}

TEST(FaultTest, NamesThreadsThatWaitForOnesThatNeverCome) {
  EXPECT_EQ(FaultOf(Break::kNothing), "");
  const std::pair<Break, std::vector<std::string>> kCases[] = {
      {Break::kExitBeforeBarrier,
       {"block (0,0,0): divergence: thread (0,0,0) waits at "
        "tools/cuda/standin/device_code_test.cc:",
        "thread (32,0,0) has exited"}},
      {Break::kTwoBarriers, {"thread (0,0,0) waits", "thread (7,0,0) waits"}},
  };
  for (const auto& [what, named] : kCases) {
    const std::string fault = FaultOf(what);
    for (const std::string& part : named) EXPECT_THAT(fault, HasSubstr(part));
  }
  EXPECT_EQ(FaultOf(Break::kNothing), "");
}

TEST(HalfTest, NanHasNoPayload) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_EQ(std::bit_cast<uint16_t>(__float2half_rn(nan)), 0x7fff);
    EXPECT_EQ(std::bit_cast<uint16_t>(__float2bfloat16_rn(nan)), 0x7fff);
  }
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER

// Writes place[threadIdx.x] in each of two kinds of memory.
__global__ void WriteDevice(int* out) { out[threadIdx.x] = 1; }
// UndefinedBehaviorSanitizer does not see from here how large the array is.
__attribute__((noinline)) void WriteMine(int* start) { start[threadIdx.x] = 1; }
__global__ void WriteStatic(int* out) {
  __shared__ int place[16];
  WriteMine(place);
  __syncthreads();
  out[0] = place[(threadIdx.x + 1) % 16];
}

class OutOfBoundsDeathTest : public testing::TestWithParam<void (*)(int* out)> {
 protected:
  void Run(int threads) {
    const Memory<int> out(16);
    const cudaLaunchConfig_t config = Shape(1, threads);
    cudaLaunchKernelEx(&config, GetParam(), out.data());
  }
};

TEST_P(OutOfBoundsDeathTest, SanitizerSeesOneElementTooMany) {
  Run(16);
  EXPECT_DEATH(Run(17), "AddressSanitizer: (heap|global)-buffer-overflow");
}

constexpr std::string_view kNames[] = {"Device", "Static"};
INSTANTIATE_TEST_SUITE_P(Memories, OutOfBoundsDeathTest,
                         testing::Values(WriteDevice, WriteStatic),
                         [](const auto& info) {
                           return std::string(kNames[info.index]);
                         });

#endif  // ABSL_HAVE_ADDRESS_SANITIZER

}  // namespace
}  // namespace lockstep
