#include "benchmarks/all_reduce/exact_pattern.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/counter_random.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

// The elements of a block have consecutive entries of the list of phases. Each
// block begins at a pseudo-random entry. Therefore values can be copied with
// memcpy, but do not repeat.
constexpr int64_t kBlock = 4096;
constexpr int64_t kBlockStarts = 8191;

// Every integer up to this is exact in bfloat16, the type with the fewest bits.
constexpr int64_t kExactLimit = 256;

constexpr int64_t kProductPhases = 7;  // The number of phases of each rank.

uint64_t Mix(uint64_t x) { return MixBits(x + 0x9e3779b97f4a7c15); }

int64_t BlockStart(int64_t block) {
  return static_cast<int64_t>(Mix(static_cast<uint64_t>(block)) % kBlockStarts);
}

bool IsInteger(DataType type) {
  return type == DataType::kInt32 || type == DataType::kInt64 ||
         type == DataType::kUInt8;
}

// Returns the bits of `value` as a float16 or bfloat16, rounded to nearest
// even. The result must be zero or a normal number. This conversion is separate
// from the one that reductions use.
uint64_t Narrow(float value, int mantissa_bits, int bias) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << 15;
  if ((bits << 1) == 0) return sign;
  const int drop = 23 - mantissa_bits;
  uint32_t magnitude = bits & 0x7fffffff;
  magnitude += ((1u << (drop - 1)) - 1) + ((magnitude >> drop) & 1);
  const int rebias = (127 - bias) << mantissa_bits;
  return sign | ((magnitude >> drop) - static_cast<uint32_t>(rebias));
}

// Returns the bits of numerator / denominator as an element of the type.
uint64_t Encode(DataType type, int64_t numerator, int64_t denominator) {
  const auto quotient =
      static_cast<float>(numerator) / static_cast<float>(denominator);
  switch (type) {
    case DataType::kFloat64:
      return std::bit_cast<uint64_t>(static_cast<double>(numerator) /
                                     static_cast<double>(denominator));
    case DataType::kFloat32:
      return std::bit_cast<uint32_t>(quotient);
    case DataType::kFloat16:
      return Narrow(quotient, 10, 15);
    case DataType::kBFloat16:
      return Narrow(quotient, 7, 127);
    case DataType::kInt32:
      return static_cast<uint32_t>(numerator / denominator);
    case DataType::kInt64:
      return static_cast<uint64_t>(numerator / denominator);
    case DataType::kUInt8:
      break;
  }
  return static_cast<uint8_t>(numerator / denominator);
}

// Returns the largest number of phases that keeps all partial results exact.
// The constructor may use fewer.
int64_t MaxPhases(DataType type, ReduceOp op, int world_size) {
  switch (op) {
    case ReduceOp::kProduct:
      return kProductPhases * world_size;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return 101;
    case ReduceOp::kAverage:
      if (IsInteger(type)) return 251;
      break;
    case ReduceOp::kSum:
      break;
  }
  return std::min<int64_t>(251, 2 * (kExactLimit / world_size) + 1);
}

int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      break;
  }
  return a + b;
}

// Returns the input of rank `rank` of `world_size` at phase `phase`, one of
// `phases` phases. Inputs are integers.
int64_t PatternInput(DataType type, ReduceOp op, int rank, int world_size,
                     int64_t phase, int64_t phases) {
  const bool is_signed = type != DataType::kUInt8;
  const int64_t small = (phase + rank) % 3;
  const bool holds = phase % world_size == rank;
  switch (op) {
    case ReduceOp::kProduct: {
      // Two ranks share the factor 2^e, e in [1, 7]. Others give 1 or -1.
      const int64_t e = phase % kProductPhases + 1;
      const int64_t holder = phase / kProductPhases;
      int64_t value = 1;
      if (rank == holder) value <<= e - e / 2;
      if (rank == (holder + 1) % world_size) value <<= e / 2;
      return is_signed && small == 0 ? -value : value;
    }
    case ReduceOp::kMin:
      return phase + (holds ? 0 : 1 + small) - (is_signed ? phases / 2 : 0);
    case ReduceOp::kMax:
      return phase + (holds ? 3 : 2 - small) - (is_signed ? phases / 2 : 0);
    case ReduceOp::kAverage:
      // With smaller values, all integer quotients would be zero.
      if (IsInteger(type)) return phase + small - (is_signed ? phases / 2 : 0);
      break;
    case ReduceOp::kSum:
      break;
  }
  return (phase + rank) % phases - (is_signed ? phases / 2 : 0);
}

template <typename Word>
void ExpandAs(const std::vector<uint64_t>& table, int64_t shift,
              std::span<const uint16_t> phases, std::byte* out) {
  const auto size = static_cast<int64_t>(table.size());
  for (size_t j = 0; j < phases.size(); ++j) {
    int64_t phase = phases[j] + shift;
    if (phase >= size) phase -= size;
    const auto word = static_cast<Word>(table[static_cast<size_t>(phase)]);
    std::memcpy(out + j * sizeof(Word), &word, sizeof(Word));
  }
}

// Calls fn(position in the data, position in the tile, length) for each run of
// elements [begin, begin + count) of a message. A run lies within one block.
template <typename Fn>
void ForEachRun(int64_t begin, int64_t count, const Fn& fn) {
  const int64_t end = begin + count;
  for (int64_t i = begin; i < end;) {
    const int64_t within = i % kBlock;
    const int64_t run = std::min(kBlock - within, end - i);
    const int64_t start = end <= kBlock ? 0 : BlockStart(i / kBlock);
    fn(i - begin, start + within, run);
    i += run;
  }
}

int64_t CountDifferent(const std::byte* a, const std::byte* b, int64_t count,
                       int64_t size) {
  int64_t different = 0;
  for (int64_t i = 0; i < count; ++i) {
    different += std::memcmp(a + i * size, b + i * size, size) != 0;
  }
  return different;
}

}  // namespace

absl::StatusOr<ExactPattern> ExactPattern::Create(DataType type, ReduceOp op,
                                                  int rank, int world_size) {
  if (world_size < 1 || world_size > kMaxWorldSize || rank < 0 ||
      rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("no pattern for rank ", rank, " of ", world_size));
  }
  return ExactPattern(type, op, rank, world_size);
}

ExactPattern::ExactPattern(DataType type, ReduceOp op, int rank, int world_size)
    : type_(type) {
  // Tries fewer phases until some step makes every result differ from the two
  // results before it. Such a step exists for every type, operation and world
  // size.
  for (int64_t phases = MaxPhases(type, op, world_size); phases > 1; --phases) {
    inputs_.clear();
    results_.clear();
    for (int64_t g = 0; g < phases; ++g) {
      int64_t result = PatternInput(type, op, 0, world_size, g, phases);
      for (int r = 1; r < world_size; ++r) {
        result = Combine(op, result,
                         PatternInput(type, op, r, world_size, g, phases));
      }
      inputs_.push_back(
          Encode(type, PatternInput(type, op, rank, world_size, g, phases), 1));
      results_.push_back(
          Encode(type, result, op == ReduceOp::kAverage ? world_size : 1));
    }
    if (FindStep()) break;
  }
  const auto phases = static_cast<uint64_t>(results_.size());
  for (int64_t j = 0; j < kBlockStarts + kBlock; ++j) {
    phases_.push_back(
        static_cast<uint16_t>(Mix(static_cast<uint64_t>(j) << 20) % phases));
  }
}

bool ExactPattern::FindStep() {
  const size_t size = results_.size();
  for (size_t step = 1; step < size; ++step) {
    bool differs = true;
    for (size_t g = 0; g < size && differs; ++g) {
      differs = results_[g] != results_[(g + step) % size] &&
                results_[g] != results_[(g + 2 * step) % size];
    }
    step_ = static_cast<int64_t>(step);
    if (differs) return true;
  }
  return false;
}

void ExactPattern::Expand(const std::vector<uint64_t>& table, int64_t iteration,
                          int64_t end) {
  // A message within the first block needs only that block's phases.
  const std::span<const uint16_t> phases =
      end <= kBlock ? std::span(phases_).subspan(BlockStart(0), end)
                    : std::span(phases_);
  const auto size = static_cast<int64_t>(table.size());
  const int64_t shift = iteration % size * step_ % size;
  tile_.resize(phases.size() * SizeOf(type_));
  switch (SizeOf(type_)) {
    case 1:
      return ExpandAs<uint8_t>(table, shift, phases, tile_.data());
    case 2:
      return ExpandAs<uint16_t>(table, shift, phases, tile_.data());
    case 4:
      return ExpandAs<uint32_t>(table, shift, phases, tile_.data());
    default:
      return ExpandAs<uint64_t>(table, shift, phases, tile_.data());
  }
}

void ExactPattern::Write(const std::vector<uint64_t>& table, int64_t iteration,
                         Buffer data, int64_t begin) {
  Expand(table, iteration, begin + data.count);
  const int64_t size = SizeOf(type_);
  ForEachRun(begin, data.count, [&](int64_t at, int64_t tile, int64_t count) {
    std::memcpy(data.bytes() + at * size, tile_.data() + tile * size,
                static_cast<size_t>(count * size));
  });
}

void ExactPattern::Fill(int64_t iteration, Buffer data) {
  Write(inputs_, iteration, data, 0);
}

void ExactPattern::FillResult(int64_t iteration, Buffer data, int64_t begin) {
  Write(results_, iteration, data, begin);
}

int64_t ExactPattern::CountWrong(int64_t iteration, ConstBuffer data,
                                 int64_t begin) {
  Expand(results_, iteration, begin + data.count);
  const int64_t size = SizeOf(type_);
  int64_t wrong = 0;
  ForEachRun(begin, data.count, [&](int64_t at, int64_t tile, int64_t count) {
    const std::byte* got = data.bytes() + at * size;
    const std::byte* want = tile_.data() + tile * size;
    if (std::memcmp(got, want, static_cast<size_t>(count * size)) == 0) return;
    wrong += CountDifferent(got, want, count, size);
  });
  return wrong;
}

}  // namespace lockstep::benchmarks
