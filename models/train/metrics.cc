#include "models/train/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

using Uint128 = unsigned __int128;

constexpr int kLimbBits = 32;
constexpr int64_t kLimbMask = (int64_t{1} << kLimbBits) - 1;
constexpr int kMantissaBits = 52;  // The stored bits.
constexpr int kUnitExponent = -1074;

}  // namespace

// Limbs hold signed sums of 32-bit pieces; carries wait for Normalize.
void ExactSum::Add(double value, int64_t times) {
  if (times == 0) return;
  if (std::isnan(value)) {
    words_[kNan] = 1;
    return;
  }
  if (std::isinf(value)) {
    words_[value > 0 ? kPositiveInfinity : kNegativeInfinity] = 1;
    return;
  }
  if (adds_ == kMaxAdds) Normalize();
  ++adds_;
  // |value| = mantissa * 2^position units; a subnormal has no hidden bit.
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> kMantissaBits & 0x7ff);
  const uint64_t hidden = exponent > 0 ? uint64_t{1} << kMantissaBits : 0;
  const uint64_t stored = bits & ((uint64_t{1} << kMantissaBits) - 1);
  const int position = std::max(exponent, 1) - 1;
  const int shift = position % kLimbBits;
  const Uint128 magnitude = Uint128{hidden | stored} * times;  // Below 2^116.
  // The first piece is computed separately, because all of magnitude << shift
  // may not fit in 128 bits.
  int64_t piece = static_cast<int64_t>(magnitude << shift) & kLimbMask;
  Uint128 rest = magnitude >> (kLimbBits - shift);
  for (int limb = position / kLimbBits;; ++limb) {
    words_[limb] += value < 0 ? -piece : piece;
    if (rest == 0) return;
    piece = static_cast<int64_t>(rest) & kLimbMask;
    rest >>= kLimbBits;
  }
}

ExactSum& ExactSum::operator+=(const ExactSum& other) {
  if (adds_ + other.adds_ > kMaxAdds) {
    ExactSum normal = other;
    normal.Normalize();
    Normalize();
    return *this += normal;
  }
  for (int i = 0; i < kLimbs; ++i) words_[i] += other.words_[i];
  for (int i = kLimbs; i < kWords; ++i) words_[i] |= other.words_[i];
  adds_ += other.adds_;
  return *this;
}

double ExactSum::Round() const {
  const bool positive = words_[kPositiveInfinity] != 0;
  const bool negative = words_[kNegativeInfinity] != 0;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (words_[kNan] != 0 || (positive && negative)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (positive || negative) return positive ? kInfinity : -kInfinity;

  ExactSum sum = *this;
  sum.Normalize();
  const bool below_zero = sum.words_[kLimbs - 1] < 0;
  if (below_zero) {
    for (int64_t& word : sum.words_) word = -word;
    sum.Normalize();
  }
  int top = kLimbs - 1;
  while (top >= 0 && sum.words_[top] == 0) --top;
  if (top < 0) return 0.0;
  // Three limbs have at least 65 bits: a double and the bits that decide its
  // rounding, if the limbs below count as one bit. A sum that needs rounding
  // has more than 53 bits, so it is not subnormal and is rounded only here.
  Uint128 leading = 0;
  for (int i = top; i > top - 3; --i) {
    leading =
        leading << kLimbBits | static_cast<Uint128>(i < 0 ? 0 : sum.words_[i]);
  }
  if (std::any_of(sum.words_.begin(), sum.words_.begin() + std::max(top - 2, 0),
                  [](int64_t word) { return word != 0; })) {
    leading |= 1;
  }
  const double rounded = std::ldexp(static_cast<double>(leading),
                                    (top - 2) * kLimbBits + kUnitExponent);
  return below_zero ? -rounded : rounded;
}

std::span<int64_t> ExactSum::Words() {
  Normalize();
  adds_ = kMaxAdds;  // As many as the caller may write here.
  return words_;
}

void ExactSum::Normalize() {
  int64_t carry = 0;
  for (int limb = 0; limb < kLimbs - 1; ++limb) {
    const int64_t sum = words_[limb] + carry;
    words_[limb] = sum & kLimbMask;
    carry = sum >> kLimbBits;  // Rounds down: limbs are not negative.
  }
  words_[kLimbs - 1] += carry;
  for (int i = kLimbs; i < kWords; ++i) {
    words_[i] = std::min<int64_t>(words_[i], 1);
  }
  adds_ = 1;
}

void AverageMeter::Update(double value, int64_t count) {
  sum_.Add(value, count);
  count_ += count;
  last_ = value;
}

void AverageMeter::UpdateSum(double sum, int64_t count) {
  sum_.Add(sum);
  count_ += count;
  last_ = sum / static_cast<double>(count);
}

double AverageMeter::average() const {
  // 0 / 0 is avoided, because the compiler chooses the sign of its NaN.
  if (count_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return sum() / static_cast<double>(count_);
}

absl::StatusOr<AverageMeter> AllReduceMeter(Communicator& communicator,
                                            const AverageMeter& meter) {
  AverageMeter all = meter;  // Sum and count travel together, as integers.
  const std::span<int64_t> sum = all.sum_.Words();
  std::array<int64_t, ExactSum::kWords + 1> words;
  std::copy(sum.begin(), sum.end(), words.begin());
  words.back() = meter.count_;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(words));
  std::copy(words.begin(), words.end() - 1, sum.begin());
  all.count_ = words.back();
  return all;
}

}  // namespace lockstep
