// Compares the trainer with the result of one rank, by the checks of Lockstep's
// conformance suite, and shows that they reject a wrong trainer.
#include "linear_regression.h"

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "conformance/training/checks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using lockstep::Communicator;

constexpr float kWeight = 0.25f;

// Returns rank r's samples. Rank r of three has r + 1, so the shards differ in
// size.
std::vector<Sample> Shard(int rank) {
  std::vector<Sample> shard;
  for (int i = 0; i <= rank; ++i) {
    shard.push_back({.x = static_cast<float>(1 + rank + i),
                     .y = static_cast<float>(2 - i)});
  }
  return shard;
}

// Returns the gradient of one rank with all samples, in float64, and the bound
// of float32's error: three roundings in each of the six terms, and six more in
// their sum and mean.
lockstep::Bounded OneRank() {
  lockstep::Bounded gradient(1);
  double magnitude = 0;
  for (int rank = 0; rank < 3; ++rank) {
    for (const Sample& sample : Shard(rank)) {
      const double x = sample.x, y = sample.y;
      gradient.value[0] += 2 * (kWeight * x - y) * x / 6;
      magnitude += 2 * (kWeight * x + y) * x / 6;
    }
  }
  gradient.bound[0] = lockstep::Gamma(3 + 6) * magnitude;
  return gradient;
}

using Trainer = absl::Status (*)(Communicator&, float, std::span<const Sample>,
                                 float&);

// Compares the gradients of three ranks with the gradient of one.
absl::Status Check(Trainer trainer) {
  std::vector<std::vector<float>> gradients(3, std::vector<float>(1));
  absl::Status status = lockstep::RunOnThreads(3, {}, [&](Communicator& group) {
    const int rank = group.rank();
    return trainer(group, kWeight, Shard(rank), gradients[rank][0]);
  });
  if (!status.ok()) return status;
  return lockstep::conformance::CheckGradients(
      std::vector<lockstep::ParameterSpec>{{"w", {1}, 0, 1}}, OneRank(),
      gradients);
}

TEST(LinearRegressionTest, ThreeRanksComputeWhatOneDoes) {
  EXPECT_EQ(Check(Gradient), absl::OkStatus());
}

// The control: averages the means of the ranks.
absl::Status MeanOfMeans(Communicator& group, float w,
                         std::span<const Sample> shard, float& gradient) {
  gradient = 0;
  for (const Sample& sample : shard) {
    gradient += 2 * (w * sample.x - sample.y) * sample.x /
                static_cast<float>(shard.size());
  }
  return group.AllReduce(std::span<float>(&gradient, 1),
                         lockstep::ReduceOp::kAverage);
}

TEST(LinearRegressionTest, AMeanOfMeansIsRejected) {
  const absl::Status status = Check(MeanOfMeans);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("w[0]"));
}

}  // namespace
