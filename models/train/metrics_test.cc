// Tests of ExactSum against an independent exact sum, and of meters, which have
// the same bits at every number of ranks. The controls are sums that are not
// exact.
#include "models/train/metrics.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

// The simplest exact sum of finite doubles, as a reference for ExactSum: bit i
// counts the multiples of 2^(i - 1074). It shares nothing with ExactSum: no
// limbs, no wide integers, no conversion that rounds.
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

  // Rounds to nearest even, bit by bit; zero is plus zero.
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

  // Makes every bit 0 or 1. Returns the carry out of the last bit: -1 if the
  // sum is negative.
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

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTiny = 0x1p-1074;
constexpr double kHalfUlpOfMax = 0x1p970;

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

std::vector<int64_t> WordsOf(ExactSum sum) {
  const std::span<int64_t> words = sum.Words();
  return {words.begin(), words.end()};
}

using Values = std::vector<double>;
using Summation = std::function<double(const Values&)>;

double SumExactly(const Values& values) {
  ExactSum sum;
  for (const double value : values) sum.Add(value);
  return sum.Round();
}

double SumByBits(const Values& values) {
  BitSum sum;
  for (const double value : values) sum.Add(value);
  return sum.Round();
}

// The controls.
double SumPlainly(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double SumByKahan(const Values& values) {
  double sum = 0, compensation = 0;
  for (const double value : values) {
    const double y = value - compensation;
    const double t = sum + y;
    compensation = (t - sum) - y;
    sum = t;
  }
  return sum;
}

struct Known {
  Values values;
  double sum;
};

std::vector<Known> KnownSums() {
  constexpr double kMax = DBL_MAX;
  return {
      {{}, 0.0},
      {{0.0}, 0.0},
      {{-0.0, -0.0}, 0.0},
      {{1, -1}, 0.0},
      {{kTiny, -0.0}, kTiny},
      {{0.1, 0.2}, 0.1 + 0.2},
      // Cancellation, over the whole range.
      {{kMax, kMax, -kMax}, kMax},
      {{-kMax, -kMax, kMax, kMax, -kTiny}, -kTiny},
      {{1e308, 1, -1e308}, 1},
      {{1e16, 1, 1e-300, -1e16, -1}, 1e-300},
      {{kMax, -kTiny, -kMax}, -kTiny},
      // Subnormals, and the step to the normals.
      {{kTiny, kTiny, kTiny}, 3 * kTiny},
      {{DBL_MIN, -kTiny}, DBL_MIN - kTiny},
      {{DBL_MIN - kTiny, kTiny}, DBL_MIN},
      {{DBL_MIN, kTiny}, DBL_MIN + kTiny},
      // Ties go to even, and a bit however far below breaks them.
      {{0x1p53, 1}, 0x1p53},
      {{0x1p53, 3}, 0x1p53 + 4},
      {{0x1p53, 1, kTiny}, 0x1p53 + 2},
      {{0x1p53, 1, -kTiny}, 0x1p53},
      {{0x1p53, 3, -kTiny}, 0x1p53 + 2},
      {{-0x1p53, -1, -kTiny}, -0x1p53 - 2},
      {{-0x1p53, -3}, -0x1p53 - 4},
      {{1, 0x1p-53}, 1},
      {{1, 0x1p-53, 0x1p-1000}, 1 + 0x1p-52},
      {{0x1p-1021, kTiny}, 0x1p-1021},
      {{0x1p-1021, 3 * kTiny}, 0x1p-1021 + 4 * kTiny},
      // A carry, and a borrow, through all limbs between.
      {{0x1p900, -kTiny}, 0x1p900},
      {{0x1p900, -kTiny, -0x1p900}, -kTiny},
      {{0x1p900, -kTiny, kTiny}, 0x1p900},
      // Overflow, at the half that rounds to it.
      {{kMax, kHalfUlpOfMax}, kInf},
      {{kMax, kHalfUlpOfMax, -kTiny}, kMax},
      {{-kMax, -kHalfUlpOfMax}, -kInf},
      {{-kMax, -kHalfUlpOfMax, kTiny}, -kMax},
      {{kMax, kMax}, kInf},
  };
}

// Returns how many sums do not have the expected bits.
int CountWrong(const Summation& summation, const std::vector<Known>& known) {
  return static_cast<int>(
      std::count_if(known.begin(), known.end(), [&](const Known& k) {
        return Bits(summation(k.values)) != Bits(k.sum);
      }));
}

TEST(ExactSumTest, RoundsKnownSumsOnceAndSoDoesTheOracle) {
  for (const Known& known : KnownSums()) {
    EXPECT_EQ(Bits(SumExactly(known.values)), Bits(known.sum))
        << testing::PrintToString(known.values);
    EXPECT_EQ(Bits(SumByBits(known.values)), Bits(known.sum))
        << testing::PrintToString(known.values);
  }
}

// Returns the edges of the format and of the limbs, and numbers between.
Values EdgeValues() {
  Values values = {0.0,
                   kTiny,
                   3 * kTiny,
                   DBL_MIN,
                   DBL_MIN - kTiny,
                   DBL_MAX,
                   1.0,
                   1 + DBL_EPSILON,
                   0x1p53,
                   0.1,
                   0x1.fffffffffffffp-1,
                   kHalfUlpOfMax};
  // The values around the seams of the lowest, a middle and the highest limb.
  for (const int seam :
       {32 - 1074, 64 - 1074, 34 * 32 - 1074, 65 * 32 - 1074}) {
    values.push_back(std::ldexp(1.0, seam));
    values.push_back(std::ldexp(0x1.fffffffffffffp0, seam - 1));
  }
  const size_t size = values.size();
  for (size_t i = 0; i < size; ++i) values.push_back(-values[i]);
  return values;
}

TEST(ExactSumTest, EqualsTheOracleOnEveryPairAndTripleOfEdges) {
  const Values edges = EdgeValues();
  for (const double a : edges) {
    for (const double b : edges) {
      ASSERT_EQ(Bits(SumExactly({a, b})), Bits(SumByBits({a, b})))
          << a << " + " << b;
      for (const double c : edges) {
        if (!(b <= c)) continue;  // Another test covers other orders.
        ASSERT_EQ(Bits(SumExactly({a, b, c})), Bits(SumByBits({a, b, c})))
            << a << " + " << b << " + " << c;
      }
    }
  }
}

TEST(ExactSumTest, AddsAValueAnyNumberOfTimes) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  for (const double a : EdgeValues()) {
    for (const int64_t times :
         {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000003},
          (int64_t{1} << 32) - 1, int64_t{1} << 32, int64_t{1} << 62, max}) {
      ExactSum sum;
      BitSum want;
      sum.Add(a, times);
      want.Add(a, times);
      ASSERT_EQ(Bits(sum.Round()), Bits(want.Round())) << a << " * " << times;
      // The sum with a small number shows all lower bits.
      sum.Add(-a, std::max<int64_t>(times - 1, 0));
      sum.Add(kTiny);
      ASSERT_EQ(Bits(sum.Round()), Bits(SumByBits({times == 0 ? 0 : a, kTiny})))
          << a << " * " << times;
    }
  }
  ExactSum repeated, at_once;
  for (int i = 0; i < 1000; ++i) repeated.Add(0.1);
  at_once.Add(0.1, 1000);
  EXPECT_EQ(WordsOf(at_once), WordsOf(repeated));
}

// Returns a number drawn from the engine itself, so that every library draws
// the same.
double RandomDouble(std::mt19937_64& random, int exponents, int base) {
  const uint64_t bits = random();
  const double mantissa = static_cast<double>(bits >> 11);
  const int exponent = static_cast<int>(random() % exponents) + base;
  return std::ldexp((bits & 1) != 0 ? mantissa : -mantissa, exponent);
}

// Returns sets of numbers that cancel in part, with their sums by the
// reference.
std::vector<Known> RandomSums() {
  std::mt19937_64 random(11);
  std::vector<Known> known;
  for (const auto& [exponents, base] :
       {std::pair(2045, -1074), {60, -60}, {1, -53}, {40, -1074}, {20, 940}}) {
    for (const size_t size : {2, 3, 10, 100, 1000}) {
      Values values(size);
      for (double& value : values) {
        value = RandomDouble(random, exponents, base);
      }
      // Half of the numbers are added again, with the other sign.
      for (size_t i = 0; i < size / 2; ++i) values.push_back(-values[i]);
      const double sum = SumByBits(values);
      known.push_back({std::move(values), sum});
    }
  }
  return known;
}

// The controls: the tests above tell an exact sum from others.
TEST(ExactSumControlTest, PlainAndCompensatedSumsAreRejected) {
  for (const std::vector<Known>& known : {KnownSums(), RandomSums()}) {
    EXPECT_GT(CountWrong(SumPlainly, known), 5);
    EXPECT_GT(CountWrong(SumByKahan, known), 5);
  }
}

// Returns the different results over all orders of the values.
std::set<uint64_t> ResultsOverOrders(const Summation& summation,
                                     Values values) {
  std::sort(values.begin(), values.end());
  std::set<uint64_t> results;
  do {
    results.insert(Bits(summation(values)));
  } while (std::next_permutation(values.begin(), values.end()));
  return results;
}

TEST(ExactSumTest, GivesTheSameBitsInEveryOrder) {
  const Values values = {1e16, -1e16, 1, 0.1, kTiny, 1e300, -1e300};
  EXPECT_THAT(ResultsOverOrders(SumExactly, values),
              ElementsAre(Bits(SumByBits(values))));
  // The controls.
  EXPECT_GT(ResultsOverOrders(SumPlainly, values).size(), 1u);
  EXPECT_GT(ResultsOverOrders(SumByKahan, values).size(), 1u);
}

TEST(ExactSumTest, TreatsInfinitiesAndNanAsAdditionDoes) {
  for (const double a : {1.0, kInf, -kInf, kNan, DBL_MAX}) {
    for (const double b : {-1.0, kInf, -kInf, kNan, DBL_MAX}) {
      const double got = SumExactly({a, b});
      if (std::isnan(a + b)) {
        EXPECT_TRUE(std::isnan(got)) << a << " + " << b;
      } else {
        EXPECT_EQ(Bits(got), Bits(a + b)) << a << " + " << b;
      }
      ExactSum left, right;
      left.Add(a, int64_t{1} << 62);
      right.Add(b, 0);  // With times = 0 nothing is added, not even a NaN.
      left += right;
      EXPECT_EQ(std::isnan(left.Round()), std::isnan(a));
    }
  }
}

// The test splits the values over `parts` sums. It adds the sums by += or, as a
// reduction does, word by word.
TEST(ExactSumTest, SumsOfPartsOfRandomNumbersHaveTheBitsOfTheWhole) {
  for (const Known& known : RandomSums()) {
    ExactSum whole;
    for (const double value : known.values) whole.Add(value);
    EXPECT_EQ(Bits(whole.Round()), Bits(known.sum));
    for (const size_t parts : {1, 2, 3, 7, 64}) {
      std::vector<ExactSum> part(parts);
      for (size_t i = 0; i < known.values.size(); ++i) {
        part[i * i % parts].Add(known.values[i]);
      }
      ExactSum sum, reduced;
      const std::span<int64_t> words = reduced.Words();
      for (ExactSum& p : part) {
        sum += p;
        const std::span<int64_t> from = p.Words();
        for (int i = 0; i < ExactSum::kWords; ++i) words[i] += from[i];
      }
      EXPECT_EQ(Bits(reduced.Round()), Bits(known.sum));
      EXPECT_EQ(WordsOf(reduced), WordsOf(whole));
      EXPECT_EQ(WordsOf(sum), WordsOf(whole));
    }
  }
}

TEST(ExactSumTest, KeepsInfinitiesAndNanThroughManyReductionsAndDoublings) {
  for (const double value : {kInf, -kInf, kNan}) {
    ExactSum sum;
    sum.Add(value);
    const std::vector<int64_t> want = WordsOf(sum);
    for (int round = 0; round < 100; ++round) {
      sum += sum;
      for (int64_t& word : sum.Words()) word *= 8;  // As over 8 equal ranks.
    }
    EXPECT_EQ(WordsOf(sum), want);
    EXPECT_EQ(sum.Words()[70 + (std::isnan(value) ? 2 : value > 0 ? 0 : 1)], 1);
    EXPECT_TRUE(std::isnan(value) ? std::isnan(sum.Round())
                                  : sum.Round() == value);
  }
}

// No normalised word is so large that 2^31 - 1 of them overflow.
TEST(ExactSumTest, WordsLeaveRoomForEveryRank) {
  for (const double sign : {1.0, -1.0}) {
    ExactSum sum;
    sum.Add(sign * DBL_MAX, std::numeric_limits<int64_t>::max());
    sum.Add(-sign * kTiny);
    for (const double special : {kInf, -kInf, kNan}) sum.Add(special);
    for (int i = 0; i < 79; ++i) sum += sum;  // 2^79 of the largest adds.
    constexpr int64_t kMost = int64_t{1} << 32;
    for (const int64_t word : sum.Words()) EXPECT_LE(std::abs(word), kMost);
  }
}

// Doubling counts as twice the adds. This test therefore passes the number
// after which a sum must normalise itself several times, with bits in many
// limbs.
TEST(ExactSumTest, NormalisesItselfBeforeALimbOverflows) {
  for (const double sign : {1.0, -1.0}) {
    ExactSum doubled, want;
    for (int limb = 0; limb < 20; ++limb) {
      const double value =
          sign * std::ldexp(0x1.fffffffffffffp0, 32 * limb - 1000);
      doubled.Add(value);
      want.Add(std::ldexp(value, 200));
    }
    for (int i = 0; i < 200; ++i) doubled += doubled;
    EXPECT_EQ(WordsOf(doubled), WordsOf(want));
  }
}

// The words are as large as a reduction over 2^31 - 1 ranks can leave them.
TEST(ExactSumTest, AddsToTheLargestWords) {
  constexpr int64_t kRanks = (int64_t{1} << 31) - 1;
  for (const double sign : {1.0, -1.0}) {
    ExactSum sum, want;
    for (const double value : {sign * 0x1p900, -sign * kTiny}) {
      sum.Add(value);
      want.Add(value, kRanks);
    }
    for (int64_t& word : sum.Words()) word *= kRanks;
    EXPECT_EQ(Bits(sum.Round()), Bits(want.Round()));
    for (int limb = 0; limb < 60; ++limb) {
      const double value = std::ldexp(0x1.fffffffffffffp0, 32 * limb - 1000);
      for (ExactSum* s : {&sum, &want}) s->Add(value);
    }
    EXPECT_EQ(WordsOf(sum), WordsOf(want));
  }
}

TEST(AverageMeterTest, WeightsByCountAndForgetsOnReset) {
  AverageMeter meter;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(meter.sum(), 0);
    EXPECT_EQ(meter.count(), 0);
    EXPECT_TRUE(std::isnan(meter.average()));
    EXPECT_TRUE(std::isnan(meter.last()));
    meter.Update(0.5);
    EXPECT_EQ(meter.average(), 0.5);
    meter.Update(2.0, 3);
    EXPECT_EQ(meter.last(), 2.0);
    EXPECT_EQ(meter.sum(), 6.5);
    EXPECT_EQ(meter.count(), 4);
    EXPECT_EQ(meter.average(), 1.625);
    meter.Update(7.0, 0);
    EXPECT_EQ(meter.last(), 7.0);
    EXPECT_EQ(meter.average(), 1.625);
    meter.UpdateSum(3.5, 4);
    EXPECT_EQ(meter.last(), 0.875);
    EXPECT_EQ(meter.sum(), 10);
    EXPECT_EQ(meter.average(), 1.25);
    meter.Reset();
  }
}

TEST(AverageMeterTest, CountsAMeanAsItsSamplesWithoutRounding) {
  AverageMeter together, apart;
  together.Update(0.1, 1000);
  for (int i = 0; i < 1000; ++i) apart.Update(0.1);
  EXPECT_EQ(together.average(), 0.1);
  // The rest is the difference between 0.1 and a tenth; a rounded product would
  // leave nothing.
  for (AverageMeter* meter : {&together, &apart}) meter->Update(-100);
  EXPECT_EQ(together.sum(), 800 * 0x1p-57);
  EXPECT_EQ(Bits(together.sum()), Bits(apart.sum()));
}

// Update i of the run, on whichever rank makes it.
struct Update {
  double value;
  int64_t count;
};

// Returns means whose sums round, of counts that differ; the last ones cancel.
std::vector<Update> Updates(int n) {
  std::vector<Update> updates;
  for (int i = 0; i < n; ++i) {
    updates.push_back({std::sin(i + 1) * std::exp2(i % 9), 1 + 37 * i % 64});
  }
  updates.push_back({1e200, 5});
  updates.push_back({-1e200, 5});
  return updates;
}

// Returns a rank's result as text: the bits of average and sum, and the count.
std::string ResultOf(const AverageMeter& meter) {
  return absl::StrCat(Bits(meter.average()), " ", Bits(meter.sum()), " ",
                      meter.count());
}

constexpr int kWorldSizes[] = {1, 2, 3, 4, 8};

// Returns ways to divide the updates: in turn; unevenly, so that some of
// several ranks have none; all to the last rank.
std::vector<std::function<int(int, int)>> Deals() {
  return {[](int i, int world_size) { return i % world_size; },
          [](int i, int world_size) { return i * i * 4 % world_size; },
          [](int, int world_size) { return world_size - 1; }};
}

// How ranks average: with meters or, as controls, with float64 sums or with the
// mean of the ranks' averages, which ignores their counts.
enum class Average { kMeter, kPlainSum, kMeanOfMeans };

// Returns the different results of the ranks at any world size and with any
// division. One entry means the same bits everywhere.
std::set<std::string> DistinctResults(Backend backend,
                                      const std::vector<Update>& updates,
                                      Average average = Average::kMeter) {
  std::set<std::string> results;
  for (const int world_size : kWorldSizes) {
    for (const auto& deal : Deals()) {
      const auto run =
          [&](Communicator& communicator) -> absl::StatusOr<std::string> {
        AverageMeter meter;
        double plain = 0;
        for (int i = 0; i < static_cast<int>(updates.size()); ++i) {
          const auto& [value, count] = updates[i];
          if (deal(i, world_size) != communicator.rank()) continue;
          meter.Update(value, count);
          plain += value * static_cast<double>(count);
        }
        if (average != Average::kMeter) {
          if (average == Average::kMeanOfMeans) {
            plain = meter.count() == 0 ? 0 : meter.average() / world_size;
          }
          LOCKSTEP_RETURN_IF_ERROR(
              communicator.AllReduce(std::span<double>(&plain, 1)));
          return absl::StrCat(Bits(plain));
        }
        const std::string own = ResultOf(meter);
        LOCKSTEP_ASSIGN_OR_RETURN(const AverageMeter all,
                                  AllReduceMeter(communicator, meter));
        if (ResultOf(meter) != own || Bits(all.last()) != Bits(meter.last())) {
          return absl::InternalError("not the rank's own meter or last value");
        }
        return ResultOf(all);
      };
      for (const absl::StatusOr<std::string>& rank :
           RunRanksCollect(backend, world_size, run)) {
        EXPECT_THAT(rank, IsOk());
        results.insert(rank.value_or(""));
      }
    }
  }
  return results;
}

class AllReduceMeterTest : public testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, AllReduceMeterTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

TEST_P(AllReduceMeterTest, GivesOneMetersBitsAtEveryWorldSize) {
  for (const std::vector<Update>& updates :
       {std::vector<Update>(), Updates(1), Updates(2), Updates(50),
        Updates(1000)}) {
    AverageMeter one;
    for (const Update& update : updates) {
      one.Update(update.value, update.count);
    }
    EXPECT_THAT(DistinctResults(GetParam(), updates),
                ElementsAre(ResultOf(one)))
        << updates.size();
  }
}

TEST(AllReduceMeterControlTest, OtherAveragesDependOnTheWorldSize) {
  std::vector<Update> updates = Updates(50);
  updates.resize(50);  // Without the values that a plain sum loses.
  for (const Average average : {Average::kPlainSum, Average::kMeanOfMeans}) {
    EXPECT_GT(DistinctResults(Backend::kThreads, updates, average).size(), 1u);
  }
}

}  // namespace
}  // namespace lockstep
