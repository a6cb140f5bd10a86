// The trainer with a network that has batch norm: statistics of a rank's own
// part of the batch or of all ranks', in files, resumed, and with dead ranks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/data_types.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/model_tensors.h"
#include "models/io/safetensors.h"
#include "models/train/train_fixture.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class TrainResNet18Test : public TrainFixture {
 protected:
  TrainResNet18Test() : TrainFixture("train_resnet18_test") {}

  // Two steps an epoch.
  static std::vector<std::string> Flags(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model=resnet18", "--train_samples=12",
                                      "--test_samples=5", "--batch_size=8",
                                      "--lr=0.05"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  int64_t CounterOf(const NamedTensors& weights, const std::string& name) {
    const NamedTensor& tensor = weights.at(name);
    EXPECT_EQ(tensor.type, DataType::kInt64);
    EXPECT_TRUE(tensor.shape.empty());
    return tensor.Values<int64_t>().at(0);
  }
};

// The largest difference between the running statistics of two runs, relative
// to each statistic's largest value; infinite if a number is none.
double StatisticsDistance(const NamedTensors& a, const NamedTensors& b) {
  double distance = 0;
  for (const auto& [name, tensor] : a) {
    if (!absl::StrContains(name, "running_")) continue;
    const std::vector<float> x = tensor.Values<float>();
    const std::vector<float> y = b.at(name).Values<float>();
    double difference = 0;
    double largest = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double apart = std::abs(x[i] - y.at(i));
      if (std::isnan(apart)) return std::numeric_limits<double>::infinity();
      difference = std::max(difference, apart);
      largest = std::max<double>(largest, std::abs(x[i]));
    }
    distance = std::max(distance, difference / largest);
  }
  return distance;
}

// After one step from the same weights.
TEST_F(TrainResNet18Test, SynchronisedRanksHaveTheStatisticsOfOne) {
  const auto train = [this](const std::string& name, std::string flags) {
    const std::vector<std::string> more =
        absl::StrSplit(flags, ' ', absl::SkipEmpty());
    std::vector<std::string> all = Flags(more);
    all.insert(all.end(), {"--train_samples=8", "--epochs=1"});
    return WeightsOf(Train(name, all));
  };
  const NamedTensors one = train("one", "--sync_bn");
  EXPECT_EQ(CounterOf(one, "1.num_batches_tracked"), 1);
  const double local = StatisticsDistance(one, train("local", "--nproc=2"));
  ASSERT_GT(local, 0.01);
  // Rounding alone: 17 layers of it, each within a few 2^-24.
  EXPECT_LT(StatisticsDistance(one, train("ddp", "--nproc=2 --sync_bn=true")),
            1e-5);
  EXPECT_LT(StatisticsDistance(
                one, train("dp", "--nproc=3 --parallelism=dp --sync_bn")),
            1e-5);
  // Local batch norm is that of a group of one.
  EXPECT_TRUE(train("alone", "--nproc=1") == one);
}

TEST(StatisticsDistanceTest, DoesNotLoseANan) {
  const auto statistics = [](const std::vector<float>& values) {
    return NamedTensors{
        {"running_mean", NamedTensor::Of({static_cast<int64_t>(values.size())},
                                         std::span(values))}};
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(StatisticsDistance(statistics({1, 2, 4}), statistics({1, nan, 4})),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(StatisticsDistance(statistics({1, 2, 4}), statistics({1, 3, 4})),
            0.25);
}

TEST_F(TrainResNet18Test, ResumesBitForBitAsIfItHadNotStopped) {
  const std::map<std::string, std::vector<std::string>> runs = {
      {"local", {"--nproc=2"}},
      {"sync", {"--nproc=2", "--sync_bn"}},
      {"dp", {"--nproc=2", "--parallelism=dp", "--sync_bn"}}};
  for (const auto& [name, flags] : runs) {
    std::vector<std::string> all = Flags(flags);
    all.push_back("--epochs=2");
    const std::string whole = Train(name + "_whole", all);
    all.back() = "--epochs=1";
    const std::string part = Train(name + "_part", all);
    EXPECT_EQ(CounterOf(WeightsOf(part), "1.num_batches_tracked"), 2);
    all.back() = "--epochs=2";
    all.push_back(absl::StrCat("--resume=", part, "/weights.safetensors"));
    const std::string rest = Train(name + "_rest", all);
    EXPECT_EQ(CounterOf(WeightsOf(rest), "1.num_batches_tracked"), 4);
    EXPECT_TRUE(ReadText(rest + "/weights.safetensors") ==
                ReadText(whole + "/weights.safetensors"))
        << name;
    const nlohmann::json metrics = MetricsOf(rest);
    EXPECT_EQ(metrics["model"], "resnet18");
    EXPECT_EQ(metrics["sync_bn"], name != "local");
    EXPECT_EQ(metrics["train_samples"], 12);
    EXPECT_EQ(metrics["test_samples"], 5);
    EXPECT_EQ(metrics["epochs"][0]["train_samples"], 12);
    EXPECT_EQ(metrics["epochs"][0]["train_loss"],
              MetricsOf(whole)["epochs"][1]["train_loss"]);
    EXPECT_EQ(metrics["epochs"][0]["test_loss"],
              MetricsOf(whole)["epochs"][1]["test_loss"]);
  }
  // Whether batch norm is synchronised is no part of a checkpoint.
  const std::string other =
      Train("other", Flags({"--nproc=2", "--sync_bn", "--epochs=2",
                            absl::StrCat("--resume=", root_,
                                         "/local_part/weights.safetensors")}));
  EXPECT_FALSE(ReadText(other + "/weights.safetensors") ==
               ReadText(root_ + "/local_whole/weights.safetensors"));
}

TEST_F(TrainResNet18Test, RefusesTheCheckpointOfAnotherModel) {
  const std::string checkpoint =
      Train("lenet", {"--epochs=1"}) + "/weights.safetensors";
  const SubprocessResult result =
      Run(Flags({"--data_dir=" + data(), "--resume=" + checkpoint}));
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_EQ(result.err, absl::StrCat("train: --model=resnet18: ", checkpoint,
                                     " holds a lenet\n"));
}

TEST_F(TrainResNet18Test, EndsWithinTwoSecondsOfTheDeathOfARank) {
  for (const int victim : {0, 1}) {
    const std::string temp = Folder(absl::StrCat("tmp", victim));
    Subprocess program = StartEndless(Flags({"--nproc=2", "--sync_bn"}), temp);
    ExpectEndAfterDeath(program, victim, temp);
    EXPECT_THAT(program.out(),
                HasSubstr("2 ranks (ddp), SyncBN, global batch 8"));
  }
}

}  // namespace
}  // namespace lockstep
