// A shadow is LeNet, but for the order of its additions.
#include "conformance/lenet_shadow.h"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "base/status_matchers.h"
#include "conformance/checks.h"
#include "conformance/fixtures.h"
#include "conformance/reference/lenet_reference.h"
#include "conformance/trace.h"
#include "conformance/training_run.h"
#include "gtest/gtest.h"
#include "models/compute_threads.h"
#include "models/data/dataset.h"

namespace lockstep {
namespace {

constexpr int64_t kSamples = 16;

Samples Blobs() {
  const Dataset data = BlobDataset(kSamples);
  std::vector<int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  Samples samples;
  samples.images.resize(kSamples * data.image_size());
  samples.labels.resize(kSamples);
  data.GatherImages(all, samples.images);
  data.GatherLabels(all, samples.labels);
  return samples;
}

// Within the rigorous bound of the float64 reference, whatever the order.
TEST(LeNetShadowTest, GradientIsLeNets) {
  SetComputeThreads(1);
  const Samples samples = Blobs();
  const std::vector<float> parameters = WellConditionedLeNet(1);
  const Bounded want =
      LeNetReference(parameters, samples.images, samples.labels, 1).gradient;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const auto got = LeNetShadow(seed).Gradient(parameters, samples);
    ASSERT_THAT(got, IsOk());
    EXPECT_THAT(CheckGradients(LeNetSpecs(), want, {{*got}}), IsOk()) << seed;
  }
}

// Else they would say nothing about rounding: no two seeds give the same bits.
TEST(LeNetShadowTest, SumsAreAddedInAnotherOrder) {
  SetComputeThreads(1);
  const Samples samples = Blobs();
  const std::vector<float> parameters = HeLeNet(1);
  const auto a = LeNetShadow(1).Gradient(parameters, samples);
  const auto b = LeNetShadow(2).Gradient(parameters, samples);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  EXPECT_NE(*a, *b);
}

}  // namespace
}  // namespace lockstep
