// The simplest exact sum of doubles, to test the other one.
#ifndef LOCKSTEP_MODELS_TESTING_BIT_SUM_H_
#define LOCKSTEP_MODELS_TESTING_BIT_SUM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace lockstep {

// Sums finite numbers: bit i counts the multiples of 2^(i - 1074). No limbs, no
// wide integers, no conversion that rounds: nothing in common with ExactSum.
class BitSum {
 public:
  // times: at least 0.
  void Add(double value, int64_t times = 1) {
    int exponent = 0;
    const double fraction = std::frexp(std::abs(value), &exponent);
    const auto mantissa = static_cast<int64_t>(std::ldexp(fraction, 53));
    const int64_t sign = std::signbit(value) ? -1 : 1;
    for (int i = 0; i < 53; ++i) {
      if ((mantissa >> i & 1) == 0) continue;
      for (int j = 0; j < 63; ++j) {
        if ((times >> j & 1) != 0) bits_[exponent - 53 + i + 1074 + j] += sign;
      }
    }
  }

  // To nearest even, bit by bit; zero is plus zero.
  double Round() const {
    std::vector<int64_t> bits = bits_;
    const bool negative = Carry(bits) < 0;
    if (negative) {
      for (int64_t& bit : bits) bit = -bit;
      Carry(bits);
    }
    int top = kBits - 1;
    while (top >= 0 && bits[top] == 0) --top;
    const int low = std::max(top - 52, 0);  // The last bit of the result.
    double rounded = 0;
    for (int i = top; i >= low; --i) {
      rounded = 2 * rounded + static_cast<double>(bits[i]);
    }
    const bool half = low > 0 && bits[low - 1] != 0;
    bool more = false;
    for (int i = 0; i < low - 1; ++i) more = more || bits[i] != 0;
    if (half && (more || bits[low] != 0)) ++rounded;
    rounded = std::ldexp(rounded, low - 1074);
    return negative ? -rounded : rounded;
  }

 private:
  static constexpr int kBits = 2300;

  // Makes every bit 0 or 1; returns what carries out: -1 if the sum is
  // negative.
  static int64_t Carry(std::vector<int64_t>& bits) {
    int64_t carry = 0;
    for (int64_t& bit : bits) {
      bit += carry;
      carry = bit >> 1;
      bit &= 1;
    }
    return carry;
  }

  std::vector<int64_t> bits_ = std::vector<int64_t>(kBits);
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TESTING_BIT_SUM_H_
