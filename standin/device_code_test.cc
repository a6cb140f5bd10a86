// Tests what kernels see of the stand-in (indices, barriers, half floats), and
// the faults that the stand-in must find in broken kernels.
#include "standin/include/device_code.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"

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

// Device memory of n elements. A kernel that writes to it needs no stream.
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
  // One device thread runs at a time, so no atomic is needed.
  ++visits[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(LaunchTest, RunsEveryThreadOfEveryBlockOnce) {
  const Memory<int> visits(2 * 3 * 4 * 5 * 6 * 7);
  cudaMemset(visits.data(), 0, visits.Read().size() * sizeof(int));
  RunKernel(Shape(dim3(2, 3, 4), dim3(5, 6, 7)), CountVisits, visits.data());
  EXPECT_THAT(visits.Read(), testing::Each(1));
}

// `order` holds the number of blocks that have run, then their indices.
__global__ void NoteOrder(int* order) {
  order[++order[0]] =
      static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + 2 * blockIdx.z));
}

std::vector<int> BlocksInOrder(standin::BlockOrder order) {
  const Memory<int> blocks(1 + 3 * 2 * 4);
  EXPECT_EQ(cudaMemset(blocks.data(), 0, sizeof(int)), cudaSuccess);
  standin::SetSchedule({.block_order = order});
  RunKernel(Shape(dim3(3, 2, 4), 1), NoteOrder, blocks.data());
  standin::SetSchedule({});
  std::vector<int> read = blocks.Read();
  EXPECT_EQ(read[0], 24);
  read.erase(read.begin());
  return read;
}

TEST(LaunchTest, RunsBlocksInTheChosenOrder) {
  std::vector<int> ascending(24);
  std::iota(ascending.begin(), ascending.end(), 0);
  const std::vector<int> descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(BlocksInOrder(standin::BlockOrder::kAscending), ascending);
  EXPECT_EQ(BlocksInOrder(standin::BlockOrder::kDescending), descending);
  const auto shuffled = BlocksInOrder(standin::BlockOrder::kShuffled);
  EXPECT_THAT(shuffled, testing::UnorderedElementsAreArray(ascending));
  EXPECT_NE(shuffled, ascending);
  EXPECT_NE(shuffled, descending);
}

TEST(LaunchTest, CountsLaunchesAndAllocations) {
  standin::ResetCounts();
  const Memory<int> visits(1);
  RunKernel(Shape(1, 1), CountVisits, visits.data());
  RunKernel(Shape(1, 1), CountVisits, visits.data());
  EXPECT_EQ(standin::Counts().launches, 2);
  EXPECT_EQ(standin::Counts().allocations, 1);
}

// Each thread takes a ticket and notes it.
__global__ void TakeTickets(unsigned* ticket, unsigned last, unsigned* taken) {
  taken[blockIdx.x * blockDim.x + threadIdx.x] = atomicInc(ticket, last);
}

TEST(AtomicIncTest, CountsAndBeginsAgain) {
  const Memory<unsigned> ticket(1);
  const Memory<unsigned> taken(6);
  EXPECT_EQ(cudaMemset(ticket.data(), 0, sizeof(unsigned)), cudaSuccess);
  RunKernel(Shape(3, 2), TakeTickets, ticket.data(), 3u, taken.data());
  EXPECT_THAT(taken.Read(), testing::UnorderedElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(ticket.Read(), testing::ElementsAre(2));
  // A value past the last begins again, too.
  RunKernel(Shape(1, 1), TakeTickets, ticket.data(), 1u, taken.data());
  EXPECT_EQ(taken.Read()[0], 2);
  EXPECT_THAT(ticket.Read(), testing::ElementsAre(0));
}

// Each thread reads the number that one of its two neighbours wrote before.
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

// The control: without the barrier, one of two blocks gives a wrong result for
// either neighbour, because the two blocks start their threads in opposite
// orders.
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
        "standin/device_code_test.cc:",
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

// Returns the distance from the exact a * b + c. For these exponents 113 bits
// hold the exact result.
__float128 Error(float result, float a, float b, float c) {
  const __float128 error = static_cast<__float128>(a) * b + c - result;
  return error < 0 ? -error : error;
}

template <typename T>
T FromBits(uint16_t bits) {
  return std::bit_cast<T>(bits);
}

// Checks 100,000 triples: each half2 and bfloat162 that __hfma2 returns is the
// nearest number, or the even one of two. Rounding to float32 first is not
// enough.
template <typename T, typename Widen, typename Fma, typename Narrow>
void ExpectRoundedOnce(uint16_t exponents, Widen widen, Fma fma,
                       Narrow narrow) {
  std::mt19937 random(17);
  int rounded_twice = 0;
  for (int i = 0; i < 100'000; ++i) {
    uint16_t bits[3];
    for (uint16_t& each : bits) {
      each = static_cast<uint16_t>((random() & exponents) |
                                   (uint16_t{0x3f80} & ~exponents));
    }
    const float a = widen(FromBits<T>(bits[0]));
    const float b = widen(FromBits<T>(bits[1]));
    const float c = widen(FromBits<T>(bits[2]));
    const T got =
        fma(FromBits<T>(bits[0]), FromBits<T>(bits[1]), FromBits<T>(bits[2]));
    const auto got_bits = std::bit_cast<uint16_t>(got);
    if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c) ||
        !std::isfinite(widen(got)) || (got_bits & 0x7fff) == 0) {
      continue;
    }
    const __float128 error = Error(widen(got), a, b, c);
    for (const int step : {-1, 1}) {
      const float next =
          widen(FromBits<T>(static_cast<uint16_t>(got_bits + step)));
      if (!std::isfinite(next)) continue;
      const __float128 other = Error(next, a, b, c);
      ASSERT_TRUE(error < other || (error == other && got_bits % 2 == 0))
          << a << " * " << b << " + " << c << " = " << widen(got);
    }
    rounded_twice += std::bit_cast<uint16_t>(narrow(a * b + c)) != got_bits;
  }
  EXPECT_GT(rounded_twice, 0);
}

TEST(HalfTest, PairsAreRoundedOnce) {
  ExpectRoundedOnce<__half>(
      0xffff, __half2float,
      [](__half a, __half b, __half c) {
        return __hfma2(__half2half2(a), __half2half2(b), __half2half2(c)).y;
      },
      __float2half_rn);
  ExpectRoundedOnce<__nv_bfloat16>(
      0x8fff, __bfloat162float,
      [](__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
        return __hfma2(__bfloat162bfloat162(a), __bfloat162bfloat162(b),
                       __bfloat162bfloat162(c))
            .x;
      },
      __float2bfloat16_rn);
}

TEST(HalfTest, PairsKeepTheirOrderAndSigns) {
  const __half2 a = __float22half2_rn(make_float2(1.5f, -0.0f));
  const __half2 b = __floats2half2_rn(-2, 0.0f);
  static_assert(sizeof(a) == 4 && alignof(__half2) == 4);
  const auto expect = [](__half2 pair, float low, float high) {
    EXPECT_EQ(__low2float(pair), low);
    EXPECT_EQ(__half22float2(pair).y, high);
    EXPECT_EQ(std::signbit(__high2float(pair)), std::signbit(high));
  };
  expect(__hadd2(a, b), -0.5f, 0.0f);
  expect(__hsub2(a, b), 3.5f, -0.0f);
  expect(__hmul2(a, b), -3, -0.0f);
  expect(__hmax2(a, b), 1.5f, 0.0f);
  expect(__hmax2(a, __floats2half2_rn(NAN, -1)), 1.5f, -0.0f);
  const __nv_bfloat162 c = __float22bfloat162_rn({3, 1.00390625f});
  EXPECT_EQ(__low2float(__hmul2(c, c)), 9);
  EXPECT_EQ(__bfloat1622float2(__hadd2(c, c)).y, 2);  // 1 + 2^-8 is a tie.
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
