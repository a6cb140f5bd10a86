// The Feistel network on a grid, its key schedule, and the walk back to [0, n).
#include "sampler/keyed_permutation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/counter_random.h"

namespace lockstep {
namespace {

using keyed_permutation_internal::RoundKey;

// One step of SplitMix64 (Steele, Lea & Flood 2014).
constexpr uint64_t Mix(uint64_t x) { return MixBits(x + 0x9e3779b97f4a7c15); }

// Returns word `index` of the round keys. Each part of the key has its own mix,
// so that sums or differences of parts do not cancel. The index is mixed first,
// so that no two keys share a run of words.
constexpr uint64_t KeyWord(int index, uint64_t seed, uint64_t epoch,
                           uint64_t n) {
  return Mix(Mix(Mix(Mix(static_cast<uint64_t>(index)) ^ seed) ^ epoch) ^ n);
}

constexpr uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
constexpr uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }

RoundKey MakeRoundKey(int round, uint64_t seed, uint64_t epoch, uint64_t n) {
  const uint64_t inner = KeyWord(2 * round, seed, epoch, n);
  const uint64_t outer = KeyWord(2 * round + 1, seed, epoch, n);
  return {Low(inner), High(inner), High(outer), Low(outer)};
}

// The parts of a round. They multiply 32 by 32 bits and do not branch, so that
// loops over them vectorise even with SSE2.

struct Hash64 {
  uint32_t high;
  uint32_t low;  // Mixed less well; only refines the rounding of `high`.
};

// Hashes by two folded multiplications with the multipliers of wyhash32 (Wang
// Yi).
inline Hash64 Hash(uint32_t half, const RoundKey& key) {
  const uint64_t first = uint64_t{half ^ key.before} * 0x53c5ca59u;
  const uint32_t middle = High(first) ^ Low(first) ^ key.between;
  const uint64_t second = uint64_t{middle} * 0x74743c1bu;
  return {High(second) ^ Low(second) ^ key.high, Low(second) ^ key.low};
}

// Returns (row + hash scaled to [0, rows)) modulo rows. There are at most 2^31
// rows, so the sum fits, and the sign of the difference tells whether to
// subtract rows.
inline uint32_t MoveRow(uint32_t row, Hash64 hash, uint32_t rows) {
  const uint64_t scaled =
      uint64_t{hash.high} * rows + High(uint64_t{hash.low} * rows);
  const uint32_t moved = row + High(scaled) - rows;
  return moved + (rows & (0u - (moved >> 31)));
}

inline uint32_t MoveColumn(uint32_t column, Hash64 hash, uint32_t mask) {
  return (column + hash.high) & mask;
}

// Returns log2 of the number of columns: half the bits of n, at least 3.
int ColumnBits(int64_t n) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(n)));
  return std::max(3, bits / 2);
}

}  // namespace

namespace keyed_permutation_internal {

int Rounds(int64_t n) {
  const int bits = ColumnBits(n);
  const int least = 4 + (64 + bits - 1) / bits;
  return least + least % 2;
}

KeyedPermutation WithRounds(int64_t n, uint64_t seed, uint64_t epoch,
                            int rounds) {
  KeyedPermutation permutation(n, seed, epoch);
  permutation.rounds_ = rounds;
  return permutation;
}

}  // namespace keyed_permutation_internal

KeyedPermutation::KeyedPermutation(int64_t n, uint64_t seed, uint64_t epoch)
    : size_(n),
      column_bits_(ColumnBits(n)),
      rounds_(keyed_permutation_internal::Rounds(n)),
      keys_{} {
  assert(n >= 1 && n <= kMaxSize);
  column_mask_ = (uint32_t{1} << column_bits_) - 1;
  rows_ = static_cast<uint32_t>(
      std::max<int64_t>(8, (n + column_mask_) >> column_bits_));
  for (int round = 0; round < rounds_; ++round) {
    keys_[round] = MakeRoundKey(round, seed, epoch, static_cast<uint64_t>(n));
  }
}

int64_t KeyedPermutation::Pass(int64_t value) const {
  auto row = static_cast<uint32_t>(value >> column_bits_);
  uint32_t column = static_cast<uint32_t>(value) & column_mask_;
  for (int round = 0; round < rounds_; round += 2) {
    row = MoveRow(row, Hash(column, keys_[round]), rows_);
    column = MoveColumn(column, Hash(row, keys_[round + 1]), column_mask_);
  }
  return (int64_t{row} << column_bits_) | column;
}

// The rounds of one value depend on each other, so only many values side by
// side keep the processor busy.
bool KeyedPermutation::PassBlock(std::span<int64_t, kBlockSize> values) const {
  std::array<uint32_t, kBlockSize> rows;
  std::array<uint32_t, kBlockSize> columns;
  for (int i = 0; i < kBlockSize; ++i) {
    rows[i] = static_cast<uint32_t>(values[i] >> column_bits_);
    columns[i] = static_cast<uint32_t>(values[i]) & column_mask_;
  }
  for (int round = 0; round < rounds_; round += 2) {
    const RoundKey row_key = keys_[round];
    const RoundKey column_key = keys_[round + 1];
    for (int i = 0; i < kBlockSize; ++i) {
      rows[i] = MoveRow(rows[i], Hash(columns[i], row_key), rows_);
    }
    for (int i = 0; i < kBlockSize; ++i) {
      columns[i] =
          MoveColumn(columns[i], Hash(rows[i], column_key), column_mask_);
    }
  }
  // Only the last row extends past size_. A comparison of unsigned numbers
  // would not vectorise. Below 2^31 the sign of the difference gives the same
  // answer.
  const auto full_rows = static_cast<uint32_t>(size_ >> column_bits_);
  uint32_t differences = 0;
  for (int i = 0; i < kBlockSize; ++i) {
    differences |= full_rows - 1 - rows[i];
    values[i] = (int64_t{rows[i]} << column_bits_) | columns[i];
  }
  return differences >> 31 != 0;
}

int64_t KeyedPermutation::WalkBack(int64_t value) const {
  while (value >= size_) value = Pass(value);
  return value;
}

int64_t KeyedPermutation::operator()(int64_t position) const {
  assert(position >= 0 && position < size_);
  return WalkBack(Pass(position));
}

void KeyedPermutation::Map(std::span<int64_t> values) const {
  while (values.size() >= kBlockSize) {
    const std::span<int64_t, kBlockSize> block = values.first<kBlockSize>();
    if (PassBlock(block)) {
      for (int64_t& value : block) value = WalkBack(value);
    }
    values = values.subspan(kBlockSize);
  }
  if (values.empty()) return;
  if (values.size() == 1) {  // One value needs no block.
    values[0] = (*this)(values[0]);
    return;
  }
  std::array<int64_t, kBlockSize> block{};
  std::copy(values.begin(), values.end(), block.begin());
  PassBlock(block);
  for (size_t i = 0; i < values.size(); ++i) values[i] = WalkBack(block[i]);
}

}  // namespace lockstep
