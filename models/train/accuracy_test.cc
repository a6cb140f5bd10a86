// The d2l chapter's recipe on the real data, which is needed where the
// distribution's package puts it: LeNet learns as fast as in PyTorch from the
// same weights and batches, and reaches the accuracy that it is known for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/networks/networks.h"
#include "models/train/trainer.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

// What testdata/recipe.py printed (torch 1.13): the mean training loss of each
// epoch, and the test accuracy after the first.
constexpr double kTorchLoss[] = {2.3026, 1.5266, 0.7209};
constexpr double kTorchAccuracy = 0.1859;

// Rounding grows: after the first epoch the two runs part, and their losses
// with them, by a percent or two. A run that is 5% behind in an epoch is
// slower.
constexpr double kMargin = 1.05;

// One rank's strided share of torch.randperm(size), drawn for each epoch from
// the generator that drew LeNet's weights after manual_seed(0). Epochs come in
// order.
class GlobalGeneratorSampler : public Sampler {
 public:
  GlobalGeneratorSampler(int64_t size, int world_size, int rank)
      : order_(size), world_size_(world_size), rank_(rank) {
    // A tensor of n >= 16 normal numbers takes n draws, and 16 more if n is no
    // multiple of 16.
    for (const unsigned long long weights : {180, 25'000, 102'400, 1'280}) {
      generator_.discard(weights + (weights % 16 == 0 ? 0 : 16));
    }
  }

  void SetEpoch(int64_t epoch) override {
    for (; drawn_ <= epoch; ++drawn_) Shuffle();
  }

  absl::StatusOr<std::vector<int64_t>> Indices() override {
    std::vector<int64_t> indices;
    for (size_t i = rank_; i < order_.size(); i += world_size_) {
      indices.push_back(order_[i]);
    }
    return indices;
  }

 private:
  void Shuffle() {
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = 0; i + 1 < order_.size(); ++i) {
      std::swap(order_[i], order_[i + generator_() % (order_.size() - i)]);
    }
  }

  std::mt19937 generator_{0};
  std::vector<int64_t> order_;
  int64_t drawn_ = 0;  // Epochs.
  int world_size_;
  int rank_;
};

struct Epoch {
  double loss;      // Mean over the training samples, while training.
  double accuracy;  // On the test set, afterwards.
};

absl::StatusOr<std::vector<Epoch>> TrainOnRank(Communicator& group,
                                               const FashionMnist& data,
                                               float learning_rate,
                                               int64_t epochs) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = CreateLeNet(/*seed=*/0);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(group, *model, data.train,
                      {.batch_size = 256, .learning_rate = learning_rate},
                      std::make_unique<GlobalGeneratorSampler>(
                          data.train.size, group.world_size(), group.rank())));
  std::vector<Epoch> results;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics train,
                              trainer->TrainEpoch(epoch, nullptr));
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics test, trainer->Evaluate(data.test));
    results.push_back({train.loss_sum / static_cast<double>(train.samples),
                       static_cast<double>(test.correct) /
                           static_cast<double>(test.samples)});
  }
  return results;
}

// Rank 0's results at 2 ranks; empty after a failure.
std::vector<Epoch> Train(float learning_rate, int64_t epochs) {
  const absl::StatusOr<FashionMnist> data = LoadFashionMnist();
  EXPECT_THAT(data, IsOk());
  std::vector<Epoch> results;
  if (!data.ok()) return results;
  RunRanksOptions options;
  options.deadline = absl::Minutes(10);
  for (const absl::Status& status : RunRanks(
           Backend::kThreads, /*world_size=*/2,
           [&](Communicator& group) -> absl::Status {
             LOCKSTEP_ASSIGN_OR_RETURN(
                 std::vector<Epoch> rank_results,
                 TrainOnRank(group, *data, learning_rate, epochs));
             if (group.rank() == 0) results = std::move(rank_results);
             return absl::OkStatus();
           },
           options)) {
    EXPECT_THAT(status, IsOk());
  }
  return results;
}

bool AsFast(double loss, size_t epoch) {
  return loss <= kTorchLoss[epoch] * kMargin;
}

TEST(RecipeTest, LearnsAsFastAsPyTorch) {
  const std::vector<Epoch> epochs = Train(0.2f, std::size(kTorchLoss));
  ASSERT_EQ(epochs.size(), std::size(kTorchLoss));
  for (size_t i = 0; i < epochs.size(); ++i) {
    EXPECT_TRUE(AsFast(epochs[i].loss, i))
        << "loss " << epochs[i].loss << " in epoch " << i;
  }
  // In the first epoch the loss hardly moves and rounding hardly grows.
  EXPECT_NEAR(epochs[0].accuracy, kTorchAccuracy, 0.01);
}

// The control: half the step is slower, and is seen to be.
TEST(RecipeTest, RejectsHalfTheLearningRate) {
  const std::vector<Epoch> epochs = Train(0.1f, 2);
  ASSERT_EQ(epochs.size(), 2);
  EXPECT_FALSE(AsFast(epochs[1].loss, 1)) << epochs[1].loss;
}

constexpr absl::Duration kDeadline = absl::Minutes(14);

// PyTorch's own run of the recipe gives 0.19, 0.56, 0.71, 0.78, 0.78, 0.81,
// 0.82, 0.78, 0.78, 0.80. From one epoch to the next the accuracy of such a run
// moves by up to 0.05, and which epoch is the first to pass 0.80 depends on the
// seed, so the bounds are on the best so far: 0.80 in the end and, since it
// must not be slower to get there, 0.05 below PyTorch's best when half way.
TEST(AccuracyTest, TwoRanksReachThePublishedAccuracyOfTheRecipe) {
  const std::string dir = absl::StrCat(testing::TempDir(), "/accuracy");
  std::filesystem::create_directories(dir);
  const SubprocessResult result = RunSubprocess(
      {"models/train/train", "--nproc=2", "--output_dir=" + dir}, kDeadline);
  ASSERT_EQ(result.exit_status, 0) << result.out << result.err;
  const nlohmann::json metrics =
      nlohmann::json::parse(std::ifstream(dir + "/metrics.json"), nullptr,
                            /*allow_exceptions=*/false);
  ASSERT_EQ(metrics["epochs"].size(), 10u) << result.out;
  std::vector<double> best;
  for (const nlohmann::json& epoch : metrics["epochs"]) {
    const double accuracy = epoch["test_accuracy"];
    best.push_back(best.empty() ? accuracy : std::max(best.back(), accuracy));
  }
  EXPECT_GE(best[4], 0.73) << result.out;
  EXPECT_GE(best[9], 0.80) << result.out;
}

}  // namespace
}  // namespace lockstep
