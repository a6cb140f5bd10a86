#include "benchmarks/step/roofline.h"

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "models/model.h"
#include "models/networks/network.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lockstep::benchmarks {

// Counting operations and bytes.
namespace {

template <typename... Kinds>
bool IsOneOf(const OperationKind& kind) {
  return (std::holds_alternative<Kinds>(kind) || ...);
}

// Returns whether backward reads the operation's first input. Backward never
// reads a second input, because the gradient of a sum is the same for both
// terms.
bool ReadsInput(const OperationKind& kind) {
  return IsOneOf<ConvolutionOp, LinearOp, BatchNormOp, LayerNormOp, GeluOp,
                 AttentionOp>(kind);
}

// Returns whether backward reads the output, which shows where ReLU was open.
bool ReadsOutput(const OperationKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.relu; }) return op.relu;
        return false;
      },
      kind);
}

// Returns the bytes that forward keeps for each output: the position of the
// maximum in a window of up to 256 elements.
int64_t IndexBytes(const OperationKind& kind) {
  const auto* const pool = std::get_if<PoolOp>(&kind);
  return pool != nullptr && pool->maximum ? 1 : 0;
}

// The numbers of elements of an operation's parameters. Backward reads only the
// weights, if any.
struct ParameterCounts {
  int64_t weights = 0, all = 0;
};

ParameterCounts CountParameters(const Network& network,
                                const OperationKind& kind) {
  const auto size = [&](int index) -> int64_t {
    return index == kNoTensor ? 0 : network.parameters()[index].size();
  };
  return std::visit(
      [&](const auto& op) -> ParameterCounts {
        if constexpr (requires { op.weight, op.bias; }) {
          return {.weights = size(op.weight),
                  .all = size(op.weight) + size(op.bias)};
        } else if constexpr (requires { op.class_token; }) {
          return {.all = size(op.class_token) + size(op.position)};
        } else {
          return {};
        }
      },
      kind);
}

}  // namespace

OperationWork WorkOf(const Network& network, int operation, int64_t batch,
                     DataType type) {
  const Network::Operation& op = network.operations()[operation];
  OperationWork work;
  int64_t first = 0;       // Elements of the first input.
  int64_t in = 0;          // Elements of all inputs.
  int64_t trained_in = 0;  // Elements of inputs that have gradients.
  for (const int value : op.inputs) {
    const Shape& shape = network.ShapeOf(value);
    if (in == 0) first = batch * shape.size();
    in += batch * shape.size();
    if (value != 0) trained_in += batch * shape.size();
  }
  const int64_t out = batch * op.output.size();
  const ParameterCounts parameters = CountParameters(network, op.kind);
  work.forward_flops = batch * FlopsOf(network, operation);
  work.backward_flops = work.forward_flops * (trained_in > 0 ? 2 : 1);
  const int64_t element = SizeOf(type);
  // Norms read float32 parameters in either type. The gradients of all
  // parameters are float32.
  const bool norm = IsOneOf<BatchNormOp, LayerNormOp>(op.kind);
  const int64_t parameter = norm ? 4 : element;
  const int64_t read_weights = norm || trained_in > 0 ? parameters.weights : 0;
  const int64_t index_bytes = IndexBytes(op.kind) * out;
  work.forward_bytes =
      element * (in + out) + parameter * parameters.all + index_bytes;
  work.backward_bytes =
      element * (out + (ReadsInput(op.kind) ? first : 0) +
                 (ReadsOutput(op.kind) ? out : 0) + trained_in) +
      parameter * read_weights + 4 * parameters.all + index_bytes;
  return work;
}

int64_t StepFlops(const Network& network, int64_t batch) {
  int64_t flops = 0;
  for (size_t i = 0; i < network.operations().size(); ++i) {
    const OperationWork work =
        WorkOf(network, static_cast<int>(i), batch, DataType::kFloat32);
    flops += work.forward_flops + work.backward_flops;
  }
  return flops;
}

// Loops that only multiply and add.
namespace {

// Runs some thousand instructions, and returns their number of operations.
using PeakLoop = int64_t (*)();

struct PeakKind {
  const char* name = "";
  PeakLoop loop = nullptr;
};

#ifdef __x86_64__

constexpr int kRepeats = 4096;

// Two instructions can begin in every cycle, and each takes 4 or 5 cycles, so
// at least 10 independent chains keep the units busy. The loops have 12 or 24.
// The values tend to 1.
__attribute__((target("avx512f"))) int64_t LoopAvx512() {
  constexpr int kChains = 24;
  __m512 half = _mm512_set1_ps(0.5f);
  asm volatile("" : "+v"(half));
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = half;
  for (int i = 0; i < kRepeats; ++i) {
#pragma GCC unroll 24
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm512_fmadd_ps(sums[k], half, half);
    }
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  return int64_t{kRepeats} * kChains * 16 * 2;
}

__attribute__((target("avx2,fma"))) int64_t LoopAvx2() {
  constexpr int kChains = 12;
  __m256 half = _mm256_set1_ps(0.5f);
  asm volatile("" : "+x"(half));
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = half;
  for (int i = 0; i < kRepeats; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm256_fmadd_ps(sums[k], half, half);
    }
  }
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  return int64_t{kRepeats} * kChains * 8 * 2;
}

// Multiplies zeros, because the sums of other products would grow without
// bound.
__attribute__((target("avx512f,avx512bf16"))) int64_t LoopAvx512Bf16() {
  constexpr int kChains = 24;
  __m512 zero = _mm512_setzero_ps();
  asm volatile("" : "+v"(zero));
  const auto factor = (__m512bh)zero;
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = zero;
  for (int i = 0; i < kRepeats; ++i) {
#pragma GCC unroll 24
    for (int k = 0; k < kChains; ++k) {
      sums[k] = _mm512_dpbf16_ps(sums[k], factor, factor);
    }
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  return int64_t{kRepeats} * kChains * 32 * 2;
}

// Multiplies tiles of 16 rows of 64 bytes: 16x16 sums of 32 products each.
__attribute__((target("amx-tile,amx-bf16"))) int64_t LoopAmx() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < kRepeats; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
  }
  _tile_release();
  return int64_t{kRepeats} * 4 * 16 * 16 * 32 * 2;
}

// Returns whether the processor has AMX for bfloat16 and Linux lets this
// process use AMX. Requests the permission, which Linux does not give by
// default.
bool RequestAmx() {
  constexpr unsigned kTileBits = 1u << 22 | 1u << 24;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2).
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kTileBits) == kTileBits &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Returns the operations a second of the fastest of 20 calls.
double MeasureSpeed(PeakLoop loop) {
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const double begin = SteadySeconds();
    const auto flops = static_cast<double>(loop());
    best = std::max(best, flops / (SteadySeconds() - begin));
  }
  return best;
}

PeakKind KindOf(DataType type) {
  if (type == DataType::kFloat32) {
    if (__builtin_cpu_supports("avx512f")) return {"AVX-512", LoopAvx512};
    if (__builtin_cpu_supports("fma")) return {"AVX2", LoopAvx2};
    return {};
  }
  if (RequestAmx()) return {"AMX", LoopAmx};
  const PeakKind single = KindOf(DataType::kFloat32);
  if (!__builtin_cpu_supports("avx512bf16")) return single;
  // Some processors begin bfloat16's pairs of products so rarely that float32
  // is faster.
  static const bool pairs =
      MeasureSpeed(LoopAvx512Bf16) > MeasureSpeed(single.loop);
  return pairs ? PeakKind{"AVX-512 BF16", LoopAvx512Bf16} : single;
}

#else

PeakKind KindOf(DataType) { return {}; }

#endif

}  // namespace

std::string PeakInstructions(DataType type) { return KindOf(type).name; }

absl::StatusOr<double> MeasurePeak(DataType type, int threads, double seconds) {
  const PeakLoop loop = KindOf(type).loop;
  if (loop == nullptr) {
    return absl::UnimplementedError(
        "no loop for this processor's multiplications");
  }
  std::barrier<> start(threads);
  std::vector<double> speeds(static_cast<size_t>(threads));
  const auto run = [&](size_t thread) {
    loop();  // The processor may have to power up its wide units.
    start.arrive_and_wait();
    const double begin = SteadySeconds();
    double elapsed = 0;
    int64_t flops = 0;
    while (elapsed < seconds) {
      flops += loop();
      elapsed = SteadySeconds() - begin;
    }
    speeds[thread] = static_cast<double>(flops) / elapsed;
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < speeds.size(); ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& thread : others) thread.join();
  double sum = 0;
  for (const double speed : speeds) sum += speed;
  return sum;
}

absl::StatusOr<double> MeasureCopy(int threads, int64_t bytes) {
  double best = 0;
  for (const CopyStores stores : {CopyStores::kMemcpy, CopyStores::kStreamed}) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const TimedCalls copies,
        TimeCopies(threads, bytes, /*warmup=*/1, /*iterations=*/5, stores));
    best = std::max(best, static_cast<double>(bytes) / Median(copies.seconds));
  }
  return best;
}

}  // namespace lockstep::benchmarks
