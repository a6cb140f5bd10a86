// SplitBatch, drawn as indices.
#include "sampler/split_batch_sampler.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Draw(const SplitBatchSamplerOptions& options) {
  return SplitBatchSampler::Create(options).value().Indices().value();
}

TEST(SplitBatchSamplerTest, DrawsTheRanksBlockEveryTime) {
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 0}),
              ElementsAre(0, 1));
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 2}),
              ElementsAre(4));
  EXPECT_THAT(Draw({.dataset_size = 5, .world_size = 4, .rank = 3}),
              ElementsAre());
  absl::StatusOr<SplitBatchSampler> sampler =
      SplitBatchSampler::Create({.dataset_size = 3});
  ASSERT_THAT(sampler, IsOk());
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler->SetEpoch(epoch);
    EXPECT_THAT(sampler->Indices().value(), ElementsAre(0, 1, 2));
    EXPECT_THAT(sampler->Indices().value(), ElementsAre(0, 1, 2));
  }
}

TEST(SplitBatchSamplerTest, RejectsOptionsOutOfRange) {
  const auto invalid = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(SplitBatchSampler::Create({.dataset_size = 0}),
              invalid("dataset_size is 0"));
  EXPECT_THAT(SplitBatchSampler::Create({.dataset_size = 3, .world_size = 0}),
              invalid("world_size is 0"));
  EXPECT_THAT(SplitBatchSampler::Create(
                  {.dataset_size = 3, .world_size = 2, .rank = -1}),
              invalid("rank is -1"));
}

}  // namespace
}  // namespace lockstep
