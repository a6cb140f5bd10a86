// Parts of permutations against the whole, by both ways.
#include "sampler/permutation_part.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "sampler/permutation.h"
#include "sampler/strided_part.h"

namespace lockstep {
namespace {

using permutation_internal::PartByMessages;
using permutation_internal::PartOfTable;

std::vector<int64_t> Plain(uint64_t seed, int64_t size,
                           const StridedPart& part) {
  std::vector<int32_t> all(size);
  RandomPermutation(seed, all);
  std::vector<int64_t> list;
  for (int64_t k = 0; k < part.count; ++k) list.push_back(all[part.At(k)]);
  return list;
}

// The parts that a rank of `stride` ranks may have: cut, whole or padded.
std::vector<StridedPart> PartsOf(int64_t size, int64_t begin, int64_t first,
                                 int64_t stride) {
  std::vector<StridedPart> parts;
  const int64_t length = size - begin;
  for (const int64_t count :
       {length / stride, (length + stride - 1) / stride,
        (length - first + stride - 1) / stride, int64_t{1}}) {
    parts.push_back({.begin = begin,
                     .length = length,
                     .first = first,
                     .stride = stride,
                     .count = std::max<int64_t>(0, count)});
  }
  return parts;
}

int64_t CountOfPadding(const StridedPart& part) {
  int64_t count = 0;
  for (int64_t k = 0; k < part.count; ++k) {
    if (part.first + k * part.stride >= part.length) ++count;
  }
  return count;
}

// Blocks of draws are 624 long, segments 8 to 256: every way in which their
// ends can meet.
TEST(PermutationPartTest, IsWhatTheWholeHas) {
  int padded = 0;
  for (const int64_t size : {1, 2, 7, 8, 9, 31, 64, 65, 623, 624, 625, 626,
                             1248, 1249, 1250, 3000}) {
    for (const int64_t stride : {1, 2, 3, 8, 40}) {
      for (const int64_t first : {int64_t{0}, stride / 2, stride - 1}) {
        for (const int64_t begin :
             {int64_t{0}, std::min<int64_t>(5, size - 1)}) {
          for (const StridedPart& part : PartsOf(size, begin, first, stride)) {
            const std::vector<int64_t> want = Plain(17, size, part);
            EXPECT_EQ(PartOfTable(17, size, part), want);
            if (CountOfPadding(part) > 1) continue;
            padded += static_cast<int>(CountOfPadding(part));
            for (const int bits : {3, 5, 8}) {
              EXPECT_EQ(PartByMessages(17, size, part, bits), want)
                  << size << " samples, stride " << stride << ", first "
                  << first << ", begin " << begin << ", count " << part.count
                  << ", segments of 2^" << bits;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(padded, 100);  // Else the loops miss what is hard.
}

TEST(PermutationPartTest, DependsOnTheSeed) {
  const StridedPart part = {.length = 100, .stride = 1, .count = 100};
  EXPECT_NE(PartByMessages(1, 100, part, 4), PartByMessages(2, 100, part, 4));
}

// The size from which messages are used, with the segments that are.
TEST(PermutationPartTest, IsTheSameAboveAndBelowTheLimitOfTables) {
  for (const int64_t size : {(int64_t{1} << 23) - 1, (int64_t{1} << 23) + 3}) {
    const StridedPart part = {
        .length = size, .first = 99, .stride = 100, .count = size / 100 + 1};
    EXPECT_EQ(PermutationPart(5, size, part), Plain(5, size, part)) << size;
  }
}

// A resumed rank of many, with less than one sample for each.
TEST(PermutationPartTest, WrapsAroundMoreThanOnce) {
  const int64_t size = (int64_t{1} << 23) + 3;
  const StridedPart part = {
      .begin = size - 3, .length = 3, .first = 7, .stride = 8, .count = 2};
  EXPECT_EQ(PermutationPart(5, size, part), Plain(5, size, part));
}

}  // namespace
}  // namespace lockstep
