// What kernels see of the stand-in: indices, barriers, warp-wide calls, the
// conversions of half and bfloat16, and the faults that it must find in broken
// kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cuda/standin/launch.h"

namespace lockstep {
namespace {

using standin::LastFault;
using testing::AllOf;
using testing::HasSubstr;

cudaLaunchConfig_t Shape(dim3 grid, dim3 block, size_t shared = 0) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return config;
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
  atomicAdd(&visits[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

TEST(LaunchTest, RunsEveryThreadOfEveryBlockOnce) {
  const Memory<int> visits(2 * 3 * 4 * 5 * 6 * 7);
  cudaMemset(visits.data(), 0, visits.Read().size() * sizeof(int));
  const cudaLaunchConfig_t config = Shape(dim3(2, 3, 4), dim3(5, 6, 7));
  ASSERT_EQ(cudaLaunchKernelEx(&config, CountVisits, visits.data()),
            cudaSuccess);
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
    ASSERT_EQ(cudaLaunchKernelEx(&config, Rotate, out.data(), step, true),
              cudaSuccess);
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
    ASSERT_EQ(cudaLaunchKernelEx(&config, Rotate, out.data(), step, false),
              cudaSuccess);
    EXPECT_THAT(out.Read(), testing::Contains(-1)) << step;
  }
}

struct Lanes {
  int from, up, down, exchanged;
  unsigned ballot;
  int any, all;
};

__global__ void Shuffle(Lanes* out, int width) {
  const int lane = static_cast<int>(threadIdx.x) % warpSize;
  const unsigned all = 0xffffffff;
  Lanes& mine = out[threadIdx.x];
  const int value = static_cast<int>(threadIdx.x);
  mine.from = __shfl_sync(all, value, 3, width);
  mine.up = __shfl_up_sync(all, value, 2, width);
  mine.down = __shfl_down_sync(all, value, 2, width);
  mine.exchanged = __shfl_xor_sync(all, value, 1, width);
  mine.ballot = __ballot_sync(all, lane % 3 == 0);
  mine.any = __any_sync(all, lane == 31);
  mine.all = __all_sync(all, lane != 31);
}

TEST(WarpTest, CallsAnswerAsDocumented) {
  for (const int width : {4, 8, 32}) {
    const Memory<Lanes> out(64);
    const cudaLaunchConfig_t config = Shape(1, 64);
    ASSERT_EQ(cudaLaunchKernelEx(&config, Shuffle, out.data(), width),
              cudaSuccess);
    const std::vector<Lanes> lanes = out.Read();
    for (int i = 0; i < 64; ++i) {
      const int place = i % width;
      EXPECT_EQ(lanes[i].from, i - place + 3);
      EXPECT_EQ(lanes[i].up, place < 2 ? i : i - 2);
      EXPECT_EQ(lanes[i].down, place + 2 < width ? i + 2 : i);
      EXPECT_EQ(lanes[i].exchanged, i ^ 1);
      EXPECT_EQ(lanes[i].ballot, 0x49249249u);
      EXPECT_EQ(lanes[i].any, 1);
      EXPECT_EQ(lanes[i].all, 0);
    }
  }
}

// Lanes outside the mask take another way, and the first half meets alone.
__global__ void HalfWarp(double* out) {
  double value = threadIdx.x;
  if (threadIdx.x < 16) {
    value += __shfl_xor_sync(0xffff, value, 8);
  } else {
    __syncwarp(0xffff0000);
  }
  __syncthreads();
  out[threadIdx.x] = value;
}

TEST(WarpTest, MasksMeetApart) {
  const Memory<double> out(32);
  const cudaLaunchConfig_t config = Shape(1, 32);
  ASSERT_EQ(cudaLaunchKernelEx(&config, HalfWarp, out.data()), cudaSuccess);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(out.Read()[i], i < 16 ? i + (i ^ 8) : i);
  }
}

// Of 40 threads the second warp has 8; the lanes beyond are not waited for, and
// nothing sensible can be read from them.
__global__ void ReadBeyond(float* out) {
  const float value = 1.0f;
  out[threadIdx.x] = __shfl_down_sync(0xffffffff, value, 8);
}

TEST(WarpTest, LanesThatAreNotThereGiveNan) {
  const Memory<float> out(40);
  const cudaLaunchConfig_t config = Shape(1, 40);
  ASSERT_EQ(cudaLaunchKernelEx(&config, ReadBeyond, out.data()), cudaSuccess);
  EXPECT_EQ(out.Read()[31], 1.0f);
  EXPECT_TRUE(std::isnan(out.Read()[32]));
}

enum class Break {
  kNothing,
  kExitBeforeBarrier,
  kTwoBarriers,
  kBarrierAgainstWarp,
  kMaskOfOthers,
  kMasksDiffer
};

__global__ void Broken(Break what) {
  if (what == Break::kExitBeforeBarrier && threadIdx.x >= 32) return;
  if (what == Break::kTwoBarriers && threadIdx.x == 7) {
    __syncthreads();
    return;
  }
  if (what == Break::kBarrierAgainstWarp && threadIdx.x < 32) __syncwarp();
  if (what == Break::kBarrierAgainstWarp && threadIdx.x == 5) __syncwarp();
  if (what == Break::kMaskOfOthers) __syncwarp(threadIdx.x == 4 ? ~16u : ~0u);
  if (what == Break::kMasksDiffer) __syncwarp(threadIdx.x == 4 ? ~1u : ~0u);
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

TEST(FaultTest, NoneInASoundKernel) { EXPECT_EQ(FaultOf(Break::kNothing), ""); }

TEST(FaultTest, ThreadExitsBeforeTheBarrier) {
  EXPECT_THAT(FaultOf(Break::kExitBeforeBarrier),
              AllOf(HasSubstr("block (0,0,0): divergence: thread (0,0,0) waits "
                              "at tools/cuda/standin/device_code_test.cc:"),
                    HasSubstr("thread (32,0,0) has exited")));
}

TEST(FaultTest, ThreadsWaitAtTwoBarriers) {
  EXPECT_THAT(FaultOf(Break::kTwoBarriers),
              AllOf(HasSubstr("thread (0,0,0) waits"),
                    HasSubstr("thread (7,0,0) waits")));
}

TEST(FaultTest, OneLaneWaitsForItsWarpAlone) {
  EXPECT_THAT(FaultOf(Break::kBarrierAgainstWarp),
              AllOf(HasSubstr("thread (5,0,0) waits at"),
                    HasSubstr("for lanes 0xffffffff")));
}

TEST(FaultTest, LaneNamesAMaskWithoutItself) {
  EXPECT_THAT(FaultOf(Break::kMaskOfOthers),
              HasSubstr("thread (4,0,0) is not in the mask 0xffffffef"));
}

TEST(FaultTest, LanesNameDifferentMasks) {
  EXPECT_THAT(FaultOf(Break::kMasksDiffer),
              AllOf(HasSubstr("thread (0,0,0) waits"),
                    HasSubstr("thread (4,0,0) waits"),
                    HasSubstr("for lanes 0xfffffffe")));
}

TEST(FaultTest, NextKernelRunsWell) {
  FaultOf(Break::kTwoBarriers);
  EXPECT_EQ(FaultOf(Break::kNothing), "");
}

TEST(LaunchTest, HostThreadsTakeTurns) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      const Memory<int> out(128);
      const cudaLaunchConfig_t config = Shape(2, 64);
      for (int repeat = 0; repeat < 20; ++repeat) {
        ASSERT_EQ(cudaLaunchKernelEx(&config, Rotate, out.data(), 1, true),
                  cudaSuccess);
        EXPECT_EQ(out.Read()[63], 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER

// Writes place[threadIdx.x] in each of three kinds of memory.
__global__ void WriteDevice(int* out) { out[threadIdx.x] = 1; }
// UndefinedBehaviorSanitizer does not see from here how large the array is.
__attribute__((noinline)) void WriteMine(int* start) { start[threadIdx.x] = 1; }
__global__ void WriteStatic(int* out) {
  __shared__ int place[16];
  WriteMine(place);
  __syncthreads();
  out[0] = place[(threadIdx.x + 1) % 16];
}
__global__ void WriteDynamic(int*) {
  static_cast<int*>(standin::DynamicShared())[threadIdx.x] = 1;
}

class OutOfBoundsDeathTest : public testing::TestWithParam<void (*)(int* out)> {
 protected:
  void Run(int threads) {
    const Memory<int> out(16);
    const cudaLaunchConfig_t config = Shape(1, threads, 16 * sizeof(int));
    cudaLaunchKernelEx(&config, GetParam(), out.data());
  }
};

TEST_P(OutOfBoundsDeathTest, SanitizerSeesOneElementTooMany) {
  Run(16);
  EXPECT_DEATH(Run(17), "AddressSanitizer: (heap|global)-buffer-overflow");
}

constexpr std::string_view kNames[] = {"Device", "Static", "Dynamic"};
INSTANTIATE_TEST_SUITE_P(Memories, OutOfBoundsDeathTest,
                         testing::Values(WriteDevice, WriteStatic,
                                         WriteDynamic),
                         [](const auto& info) {
                           return std::string(kNames[info.index]);
                         });

#endif  // ABSL_HAVE_ADDRESS_SANITIZER

// The conversions are compared with arithmetic in double.
struct Half {
  static constexpr int kDigits = 10;  // Stored ones.
  static constexpr int kBias = 15;
  static float Widen(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
  }
  static uint16_t Round(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
};

struct Bfloat16 {
  static constexpr int kDigits = 7;
  static constexpr int kBias = 127;
  static float Widen(uint16_t bits) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  }
  static uint16_t Round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

// The value that the format's definition gives to finite, positive bits.
template <typename Format>
double Value(uint16_t bits) {
  const int exponent = bits >> Format::kDigits;
  const int digits = bits & ((1 << Format::kDigits) - 1);
  const int leading = exponent == 0 ? 0 : 1 << Format::kDigits;
  return std::ldexp(leading + digits, (exponent == 0 ? 1 : exponent) -
                                          Format::kBias - Format::kDigits);
}

template <typename Format>
constexpr uint16_t kInfinity = (0x8000 >> Format::kDigits) - 1
                               << Format::kDigits;

template <typename Format>
class HalfTest : public testing::Test {};

using Formats = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(HalfTest, Formats);

TYPED_TEST(HalfTest, InfinityIsWhereTheFormatHasIt) {
  const uint16_t want = TypeParam::kDigits == 10 ? 0x7c00 : 0x7f80;
  EXPECT_EQ(kInfinity<TypeParam>, want);
  EXPECT_EQ(TypeParam::Widen(want), std::numeric_limits<float>::infinity());
  EXPECT_EQ(TypeParam::Widen(want | 0x8000),
            -std::numeric_limits<float>::infinity());
}

TYPED_TEST(HalfTest, WidensEveryValueExactlyAndBack) {
  for (uint16_t bits = 0; bits < kInfinity<TypeParam>; ++bits) {
    const float value = TypeParam::Widen(bits);
    ASSERT_EQ(value, Value<TypeParam>(bits)) << bits;
    ASSERT_EQ(TypeParam::Round(value), bits);
    const float negative = TypeParam::Widen(bits | 0x8000);
    ASSERT_EQ(negative, -value) << bits;
    ASSERT_TRUE(std::signbit(negative)) << bits;
    ASSERT_EQ(TypeParam::Round(negative), bits | 0x8000);
  }
}

// Between each two neighbours, the last to infinity: the floats around the
// middle, and the middle itself.
TYPED_TEST(HalfTest, RoundsToNearestTiesToEven) {
  for (uint16_t bits = 0; bits < kInfinity<TypeParam>; ++bits) {
    const uint16_t next = bits + 1;
    const double middle = (Value<TypeParam>(bits) + Value<TypeParam>(next)) / 2;
    const float tie = static_cast<float>(middle);
    const uint16_t even = bits % 2 == 0 ? bits : next;
    if (tie == middle) {
      ASSERT_EQ(TypeParam::Round(tie), even) << bits;
    }
    const float below = std::nextafter(tie, 0.0f);
    const float above =
        std::nextafter(tie, std::numeric_limits<float>::infinity());
    ASSERT_EQ(TypeParam::Round(below), bits) << bits;
    ASSERT_EQ(TypeParam::Round(above), next) << bits;
    ASSERT_EQ(TypeParam::Round(-above), next | 0x8000) << bits;
  }
}

TYPED_TEST(HalfTest, RoundsWhatIsOutOfRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam::Round(infinity), kInfinity<TypeParam>);
  EXPECT_EQ(TypeParam::Round(-infinity), kInfinity<TypeParam> | 0x8000);
  EXPECT_EQ(TypeParam::Round(std::numeric_limits<float>::max()),
            kInfinity<TypeParam>);
  EXPECT_EQ(TypeParam::Round(std::numeric_limits<float>::denorm_min()), 0);
}

TYPED_TEST(HalfTest, EveryNanStaysNan) {
  for (uint32_t bits = kInfinity<TypeParam> + 1; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(TypeParam::Widen(static_cast<uint16_t>(bits))));
  }
  // The payload must not be rounded away, as 0x7f800001's would be.
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff800001u}) {
    EXPECT_EQ(TypeParam::Round(std::bit_cast<float>(bits)), 0x7fff);
  }
}

TEST(HalfArithmeticTest, RoundsOnce) {
  const __half one = __float2half(1.0f);
  const __half tiny = __float2half(0x1p-11f);  // Half of what 1 can resolve.
  EXPECT_EQ(__half2float(one + tiny), 1.0f);
  EXPECT_EQ(__half2float(one - tiny), 1.0f - 0x1p-11f);
  EXPECT_EQ(__half2float(tiny * tiny), 0x1p-22f);
}

TEST(Bfloat16ArithmeticTest, RoundsOnce) {
  const __nv_bfloat16 one = __float2bfloat16(1.0f);
  const __nv_bfloat16 tiny = __float2bfloat16(0x1p-8f);
  EXPECT_EQ(__bfloat162float(one + tiny), 1.0f);
  EXPECT_EQ(__bfloat162float(one - tiny), 1.0f - 0x1p-8f);
  EXPECT_EQ(__bfloat162float(tiny * tiny), 0x1p-16f);
}

}  // namespace
}  // namespace lockstep
