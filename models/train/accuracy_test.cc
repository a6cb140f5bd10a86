// Tests of the d2l chapter's recipe on the real data, which must be where the
// distribution's package puts it. LeNet must learn as fast as in PyTorch from
// the same weights and batches, and reach its known accuracy. A slice trains
// two epochs instead of three, and one epoch of smaller batches instead of ten.
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
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/networks/networks.h"
#include "models/train/trainer.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

// The results that testdata/recipe.py printed (torch 1.13): the mean training
// loss of each epoch, and the test accuracy after the first.
constexpr double kTorchLoss[] = {2.3026, 1.5266, 0.7209};
constexpr double kTorchAccuracy = 0.1859;

// Rounding differences grow: after the first epoch the losses of the two runs
// differ by a percent or two. A run whose loss in an epoch is 5% higher is
// slower.
constexpr double kMargin = 1.05;

// Returns one rank's strided share of torch.randperm(size). Each epoch's
// permutation is drawn from the generator that drew LeNet's weights after
// manual_seed(0). Epochs must come in order.
class GlobalGeneratorSampler : public Sampler {
 public:
  GlobalGeneratorSampler(int64_t size, int world_size, int rank)
      : order_(size), world_size_(world_size), rank_(rank) {
    // A tensor of n >= 16 normal numbers takes n draws, and 16 more if n is not
    // a multiple of 16.
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

struct Result {
  std::vector<double> losses;  // Of each epoch: the mean while training.
  double accuracy = 0;         // On the test set, after the first.
};

absl::StatusOr<Result> TrainOnRank(Communicator& group,
                                   const FashionMnist& data,
                                   float learning_rate, int64_t epochs) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = *CreateModel("lenet", /*seed=*/0);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(
          group, *model, data.train,
          {.batch_size = 256, .learning_rate = learning_rate},
          std::make_unique<GlobalGeneratorSampler>(
              data.train.size(), group.world_size(), group.rank())));
  Result result;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics train,
                              trainer->TrainEpoch(epoch, nullptr));
    result.losses.push_back(train.mean_loss());
    if (epoch > 0) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics test, trainer->Evaluate(data.test));
    result.accuracy = test.accuracy();
  }
  return result;
}

// Returns rank 0's result with 2 ranks; without losses after a failure.
Result Train(float learning_rate, int64_t epochs) {
  const absl::StatusOr<FashionMnist> data = LoadFashionMnist();
  EXPECT_THAT(data, IsOk());
  Result result;
  if (!data.ok()) return result;
  for (const absl::Status& status : RunRanks(
           Backend::kThreads, /*world_size=*/2,
           [&](Communicator& group) -> absl::Status {
             LOCKSTEP_ASSIGN_OR_RETURN(
                 Result mine, TrainOnRank(group, *data, learning_rate, epochs));
             if (group.rank() == 0) result = std::move(mine);
             return absl::OkStatus();
           })) {
    EXPECT_THAT(status, IsOk());
  }
  return result;
}

bool IsAsFast(double loss, size_t epoch) {
  return loss <= kTorchLoss[epoch] * kMargin;
}

TEST(RecipeTest, LearnsAsFastAsPyTorch) {
  const size_t epochs = IsExhaustive() ? std::size(kTorchLoss) : 2;
  const Result result = Train(0.2f, static_cast<int64_t>(epochs));
  ASSERT_EQ(result.losses.size(), epochs);
  for (size_t i = 0; i < epochs; ++i) {
    EXPECT_TRUE(IsAsFast(result.losses[i], i))
        << "loss " << result.losses[i] << " in epoch " << i;
  }
  // In the first epoch the loss hardly moves and rounding hardly grows.
  EXPECT_NEAR(result.accuracy, kTorchAccuracy, 0.01);
}

// The control: with half the learning rate training is slower, and the test
// detects it.
TEST(RecipeTest, RejectsHalfTheLearningRate) {
  const Result result = Train(0.1f, 2);
  ASSERT_EQ(result.losses.size(), 2);
  EXPECT_FALSE(IsAsFast(result.losses[1], 1)) << result.losses[1];
}

constexpr absl::Duration kDeadline = absl::Minutes(14);

// Returns the test accuracy after each epoch of a run of the command on two
// ranks.
std::vector<double> TrainByCommand(std::vector<std::string> flags) {
  const std::string dir = absl::StrCat(testing::TempDir(), "/accuracy");
  std::filesystem::create_directories(dir);
  flags.insert(flags.begin(), {"models/train/train", "--nproc=2",
                               absl::StrCat("--output_dir=", dir)});
  const SubprocessResult result = RunSubprocess(flags, kDeadline);
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  const nlohmann::json metrics =
      nlohmann::json::parse(std::ifstream(dir + "/metrics.json"), nullptr,
                            /*allow_exceptions=*/false);
  std::vector<double> accuracies;
  for (const nlohmann::json& epoch : metrics["epochs"]) {
    accuracies.push_back(epoch["test_accuracy"]);
  }
  return accuracies;
}

// PyTorch's own run of the recipe gives 0.19, 0.56, 0.71, 0.78, 0.78, 0.81,
// 0.82, 0.78, 0.78, 0.80. The accuracy of such a run moves by up to 0.05
// between epochs, and the first epoch to pass 0.80 depends on the seed. The
// bounds are therefore on the best accuracy so far: 0.80 at the end and, since
// training must not be slower, 0.05 below PyTorch's best half way.
TEST(AccuracyTest, TwoRanksReachThePublishedAccuracyOfTheRecipe) {
  if (!IsExhaustive()) GTEST_SKIP() << "ten epochs";
  const std::vector<double> all = TrainByCommand({});
  ASSERT_EQ(all.size(), 10u);
  EXPECT_GE(*std::max_element(all.begin(), all.begin() + 5), 0.73);
  EXPECT_GE(*std::max_element(all.begin(), all.end()), 0.80);
}

// The run takes nearly as many steps as the recipe: seeds 0 to 2 end at 0.78 to
// 0.80. Half the learning rate also reaches that accuracy; RecipeTest rejects
// it. The control: a tenth of the steps does not reach it.
TEST(AccuracyTest, OneEpochOfSmallBatchesLearns) {
  for (const bool few : {false, true}) {
    const std::vector<double> one = TrainByCommand(
        {"--epochs=1", "--batch_size=32",
         few ? "--train_samples=6000" : "--train_samples=60000"});
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0] < 0.75, few) << one[0];
  }
}

}  // namespace
}  // namespace lockstep
