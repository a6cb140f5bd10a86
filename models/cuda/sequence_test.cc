#include "models/cuda/sequence.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

// Different integers, whose sums are exact.
std::vector<float> Numbers(int64_t size, float first = 0) {
  std::vector<float> values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), first);
  return values;
}

class SequenceTest : public GpuTest {};

TEST_F(SequenceTest, TheClassTokenComesBeforeThePatches) {
  for (const SequenceShape& shape : {SequenceShape{1, 2, 1}, {3, 5, 70}}) {
    const auto& [n, length, width, type] = shape;
    const std::vector<float> patches = Numbers(n * (length - 1) * width);
    const std::vector<float> token = Numbers(width, 5000);
    const std::vector<float> position = Numbers(length * width, 9000);
    std::vector<float> want;
    auto patch = patches.begin();
    for (int64_t sample = 0; sample < n; ++sample) {
      for (int64_t i = 0; i < length * width; ++i) {
        want.push_back((i < width ? token[static_cast<size_t>(i)] : *patch++) +
                       position[static_cast<size_t>(i)]);
      }
    }
    TestVector<float> device_patches(patches), device_token(token),
        device_position(position), y(want);
    ASSERT_THAT(EmbedForward(shape, device_patches.data(), device_token.data(),
                             device_position.data(), y.data(), nullptr),
                IsOk());
    EXPECT_EQ(y.Read(), want);
  }
}

TEST_F(SequenceTest, TheEmbeddingsGradientsAddSamples) {
  const SequenceShape shape = {.n = 3, .length = 5, .width = 70};
  const std::vector<float> dy = Numbers(3 * 5 * 70);
  std::vector<float> dpatches, dposition(5 * 70), dtoken(70);
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t within = i % dposition.size();
    dposition[within] += dy[i];
    if (within < 70) {
      dtoken[within] += dy[i];
    } else {
      dpatches.push_back(dy[i]);
    }
  }
  TestVector<float> device_dy(dy), patches(std::vector<float>(dpatches.size()));
  TestVector<float> token(Numbers(70)), position(Numbers(5 * 70));
  for (const bool wanted : {true, false}) {
    ASSERT_THAT(EmbedBackward(shape, device_dy.data(),
                              wanted ? patches.data() : nullptr, token.data(),
                              position.data(), nullptr),
                IsOk());
    EXPECT_EQ(patches.Read(), dpatches);
    EXPECT_EQ(token.Read(), dtoken);
    EXPECT_EQ(position.Read(), dposition);
  }
}

TEST_F(SequenceTest, TheFirstPositionIsCopied) {
  const SequenceShape shape = {.n = 3, .length = 4, .width = 50};
  const std::vector<float> x = Numbers(3 * 4 * 50, 1);
  std::vector<float> y, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool first = i % 200 < 50;
    if (first) y.push_back(x[i]);
    dx.push_back(first ? x[i] : 0);
  }
  TestVector<float> device_x(x), device_y(std::vector<float>(y.size()));
  ASSERT_THAT(
      FirstPositionForward(shape, device_x.data(), device_y.data(), nullptr),
      IsOk());
  EXPECT_EQ(device_y.Read(), y);
  ASSERT_THAT(
      FirstPositionBackward(shape, device_y.data(), device_x.data(), nullptr),
      IsOk());
  EXPECT_EQ(device_x.Read(), dx);
}

TEST_F(SequenceTest, HeadsAreSplitAndJoined) {
  const HeadShape shape = {.n = 2,
                           .length = 3,
                           .parts = 3,
                           .heads = 4,
                           .size = 5,
                           .part_stride = 2 * 3 * 4 * 5 + 8};
  const std::vector<float> sequence = Numbers(2 * 3 * 3 * 4 * 5, 1);
  std::vector<float> heads(3 * shape.part_stride);  // 0 between parts.
  size_t next = 0;
  for (int64_t sample = 0; sample < 2; ++sample) {
    for (int64_t position = 0; position < 3; ++position) {
      for (int64_t part = 0; part < 3; ++part) {
        for (int64_t head = 0; head < 4; ++head) {
          for (int64_t i = 0; i < 5; ++i) {
            heads[static_cast<size_t>(part * shape.part_stride +
                                      ((sample * 4 + head) * 3 + position) * 5 +
                                      i)] = sequence[next++];
          }
        }
      }
    }
  }
  TestVector<float> device_sequence(sequence);
  TestVector<float> split(std::vector<float>(heads.size()));
  ASSERT_THAT(SplitHeads(shape, device_sequence.data(), split.data(), nullptr),
              IsOk());
  EXPECT_EQ(split.Read(), heads);
  TestVector<float> joined(std::vector<float>(sequence.size()));
  ASSERT_THAT(JoinHeads(shape, split.data(), joined.data(), nullptr), IsOk());
  EXPECT_EQ(joined.Read(), sequence);
}

}  // namespace
}  // namespace lockstep
