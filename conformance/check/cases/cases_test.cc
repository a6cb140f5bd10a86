// Tests that the built-in cases match their names and can tell ranks apart, and
// that tensors convert to other tensors and to numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

using Indices = std::vector<int64_t>;

constexpr int kWorldSizes[] = {2, 3, 4, 5, 8};

const CheckCase& Find(const std::vector<CheckCase>& cases,
                      const std::string& name) {
  return *std::ranges::find(cases, name, &CheckCase::name);
}

int64_t LastBatch(const CheckCase& check) {
  const int64_t batch = check.all_ranks.c.global_batch();
  return (SampleCount(check.files, "train") - 1) % batch + 1;
}

TEST(BuiltInCasesTest, HasEachCaseOnce) {
  std::vector<std::string> names;
  for (const CheckCase& check : BuiltInCases(2)) names.push_back(check.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "even", "momentum", "shuffled", "uneven_batches",
                       "uneven_last_batch", "accumulation", "sync_bn",
                       "local_bn", "evaluation", "resume", "unused_parameter",
                       "frozen_parameter", "bfloat16"}));
}

TEST(BuiltInCasesTest, ComparesLikeWithLike) {
  for (const int n : kWorldSizes) {
    for (const CheckCase& check : BuiltInCases(n)) {
      SCOPED_TRACE(check.name);
      EXPECT_EQ(check.all_ranks.c.world_size(), n);
      EXPECT_EQ(check.one_rank.c.batch_sizes,
                Indices{check.all_ranks.c.global_batch()});
      Case alike = check.one_rank.c;
      alike.batch_sizes = check.all_ranks.c.batch_sizes;
      alike.accumulate = check.all_ranks.c.accumulate;
      alike.stop_after = check.all_ranks.c.stop_after;
      EXPECT_EQ(alike, check.all_ranks.c);
      EXPECT_FALSE(check.one_rank.resumed.has_value());
      EXPECT_EQ(check.name, check.all_ranks.c.name);
      EXPECT_TRUE(check.about.ends_with('.'));
      EXPECT_EQ(check.claims.front(), Claim::kRun);
    }
  }
}

TEST(BuiltInCasesTest, StaysSmall) {
  for (const int n : kWorldSizes) {
    for (const CheckCase& check : BuiltInCases(n)) {
      SCOPED_TRACE(check.name);
      const Case& c = check.all_ranks.c;
      const int64_t batch = c.global_batch();
      EXPECT_LE(batch, std::max(16, 4 * n));
      const int64_t size = SampleCount(check.files, "train");
      const int64_t steps = (size + batch - 1) / batch * c.epochs;
      EXPECT_LE(steps, std::max(8, n));
      EXPECT_GE(steps, 2);
      if (!c.write_state.empty()) {
        EXPECT_EQ(c.write_state.back(), steps);
      }
    }
  }
}

TEST(BuiltInCasesTest, SizesAreAsNamed) {
  EXPECT_EQ(Find(BuiltInCases(2), "uneven_batches").all_ranks.c.batch_sizes,
            (Indices{4, 3}));
  EXPECT_EQ(Find(BuiltInCases(3), "uneven_batches").all_ranks.c.batch_sizes,
            (Indices{4, 4, 3}));
  for (const int n : kWorldSizes) {
    const std::vector<CheckCase> cases = BuiltInCases(n);
    EXPECT_LT(LastBatch(Find(cases, "uneven_last_batch")), n);
    const CheckCase& evaluation = Find(cases, "evaluation");
    const int64_t test = SampleCount(evaluation.files, "test");
    EXPECT_NE(test % n, 0);
    EXPECT_NE(test % evaluation.all_ranks.c.global_batch(), 0);
    EXPECT_EQ(evaluation.claims.back(), Claim::kEvaluation);
    const Case& resume = Find(cases, "resume").all_ranks.c;
    const int64_t per_epoch =
        SampleCount(Find(cases, "resume").files, "train") /
        resume.global_batch();
    // A repeated batch is not the epoch's first, and one is left to be skipped.
    EXPECT_GE(resume.stop_after % per_epoch, 2);
    EXPECT_GE(per_epoch - resume.stop_after % per_epoch, 2);
    EXPECT_GT(resume.momentum, 0);
    EXPECT_TRUE(Find(cases, "resume").all_ranks.resumed->resume);
    const int64_t a = Find(cases, "accumulation").all_ranks.c.accumulate;
    EXPECT_EQ(std::set<int64_t>({1, a, n, n * n}).size(), 4u);
    for (const int64_t size :
         Find(cases, "accumulation").all_ranks.c.batch_sizes) {
      EXPECT_EQ(size % a, 0);
    }
  }
}

TEST(BuiltInCasesTest, LayersNameEveryTensor) {
  for (const CheckCase& check : BuiltInCases(2)) {
    for (const auto& [name, tensor] : check.files.weights.tensors) {
      if (name == "spare") continue;
      EXPECT_NE(WithLayer(check, name), name);
    }
    for (const std::string& name : NamesInOrder(check)) {
      EXPECT_TRUE(check.files.weights.tensors.contains(name)) << name;
    }
  }
}

// Returns the mean image of some samples.
Values MeanImage(const CheckCase& check, const Indices& indices) {
  const Values images = ToValues(check.files.data.tensors.at("train.images"));
  constexpr size_t kPixels = 28 * 28;
  Values mean(kPixels);
  for (const int64_t index : indices) {
    for (size_t i = 0; i < kPixels; ++i) {
      mean[i] += images[static_cast<size_t>(index) * kPixels + i] /
                 static_cast<double>(indices.size());
    }
  }
  return mean;
}

double Norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Deals out the first global batch in contiguous and in strided shares.
std::vector<std::vector<Indices>> WaysToDeal(const Indices& sizes) {
  std::vector<std::vector<Indices>> ways(2, std::vector<Indices>(sizes.size()));
  int64_t next = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (int64_t i = 0; i < sizes[r]; ++i) {
      ways[0][r].push_back(next++);
      ways[1][r].push_back(static_cast<int64_t>(r) +
                           i * static_cast<int64_t>(sizes.size()));
    }
  }
  return ways;
}

// An average of ranks without their counts must differ from the weighted one,
// and a share's statistics from the batch's. The images themselves already show
// both.
TEST(BuiltInCasesTest, SharesDiffer) {
  for (const int n : {2, 3, 4}) {
    const std::vector<CheckCase> cases = BuiltInCases(n);
    for (const char* name : {"uneven_batches", "local_bn"}) {
      const CheckCase& check = Find(cases, name);
      const Indices& sizes = check.all_ranks.c.batch_sizes;
      Indices all(check.all_ranks.c.global_batch());
      std::iota(all.begin(), all.end(), 0);
      const Values whole = MeanImage(check, all);
      for (const std::vector<Indices>& shares : WaysToDeal(sizes)) {
        Values mean_of_means(whole.size());
        for (const Indices& share : shares) {
          const Values mean = MeanImage(check, share);
          EXPECT_GT(Norm(Minus(mean, whole)), 0.2 * Norm(whole)) << name;
          mean_of_means = PlusTimes(mean_of_means, 1.0 / n, mean);
        }
        EXPECT_GT(Norm(Minus(mean_of_means, whole)), 0.01 * Norm(whole))
            << name;
      }
    }
  }
}

// Returns seven training samples in batches of three, and five test samples.
// Sample i has the label i and the image i.
CheckCase SevenSamples() {
  CheckCase check;
  check.claims = {Claim::kRun, Claim::kGradients};
  check.one_rank.c.batch_sizes = {3};
  for (const auto& [part, size] :
       {std::pair<std::string, int64_t>{"train", 7}, {"test", 5}}) {
    std::vector<int64_t> labels(size);
    std::iota(labels.begin(), labels.end(), 0);
    const std::vector<float> images(labels.begin(), labels.end());
    check.files.data.tensors[part + ".labels"] =
        NamedTensor::Of<int64_t>({size}, labels);
    check.files.data.tensors[part + ".images"] =
        NamedTensor::Of<float>({size, 1, 1, 1}, images);
  }
  return check;
}

Values Get(const ExtraStart& start, const std::string& name) {
  return ToValues(start.files.data.tensors.at(name));
}

TEST(ReorderedStartsTest, PermuteWithinBatches) {
  const std::vector<ExtraStart> starts = ReorderedStarts(SevenSamples());
  ASSERT_EQ(starts.size(), 2u);
  const Values reversed = {2, 1, 0, 5, 4, 3, 6};
  const Values rotated = {1, 2, 0, 4, 5, 3, 6};
  EXPECT_EQ(Get(starts[0], "train.labels"), reversed);
  EXPECT_EQ(Get(starts[0], "train.images"), reversed);
  EXPECT_EQ(Get(starts[1], "train.labels"), rotated);
  EXPECT_EQ(Get(starts[0], "test.labels"), (Values{4, 3, 2, 1, 0}));
  EXPECT_EQ(Get(starts[1], "test.images"), (Values{2, 3, 4, 0, 1}));
  EXPECT_EQ(starts[0].plan.c, SevenSamples().one_rank.c);
}

TEST(ReorderedStartsTest, NoneWhereNoNumberIsCompared) {
  CheckCase check = SevenSamples();
  check.claims = {Claim::kRun, Claim::kSamples};
  EXPECT_TRUE(ReorderedStarts(check).empty());
  check = SevenSamples();
  check.one_rank.c.shuffle = true;
  EXPECT_TRUE(ReorderedStarts(check).empty());
}

TEST(CaseFilesTest, TakesTheRowsAskedFor) {
  const CheckCase check = SevenSamples();
  EXPECT_EQ(SampleCount(check.files, "train"), 7);
  EXPECT_EQ(SampleCount(check.files, "other"), 0);
  const std::vector<int64_t> rows = {6, 0, 6};
  const CaseFiles files = WithSamples(check.files, "train", rows);
  EXPECT_EQ(SampleCount(files, "train"), 3);
  EXPECT_EQ(SampleCount(files, "test"), 5);
  EXPECT_EQ(ToValues(files.data.tensors.at("train.images")), (Values{6, 0, 6}));
  EXPECT_EQ(SampleCount(WithSamples(check.files, "test", {}), "test"), 0);
}

template <typename T>
NamedTensor Tensor(DataType type, const std::vector<T>& values) {
  NamedTensor tensor{.type = type, .shape = {}, .data = {}};
  tensor.data.resize(values.size() * sizeof(T));
  std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

TEST(NumbersTest, ReadsEveryType) {
  const Values want = {1, -2, 0};
  EXPECT_EQ(ToValues(Tensor<double>(DataType::kFloat64, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<float>(DataType::kFloat32, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<uint16_t>(DataType::kFloat16, {0x3c00, 0xc000, 0})),
            want);
  EXPECT_EQ(
      ToValues(Tensor<uint16_t>(DataType::kBFloat16, {0x3f80, 0xc000, 0})),
      want);
  EXPECT_EQ(ToValues(Tensor<int32_t>(DataType::kInt32, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<int64_t>(DataType::kInt64, {1, -2, 0})), want);
  EXPECT_EQ(ToValues(Tensor<uint8_t>(DataType::kUInt8, {7})), Values{7});
}

TEST(NumbersTest, PicksTensorsByKindAndStep) {
  RankOutput output;
  for (const char* name :
       {"gradient.1/a", "gradient.1/b/c", "gradient.11/a", "parameter.1/a"}) {
    output.tensors[name] = NamedTensor::Of<float>({1}, std::vector<float>{1});
  }
  const Tensors tensors = TensorsOf(output, "gradient", 1);
  EXPECT_EQ(tensors.size(), 2u);
  EXPECT_TRUE(tensors.contains("a"));
  EXPECT_TRUE(tensors.contains("b/c"));
}

TEST(NumbersTest, DifferencesKeepNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(LargestDifference(Values{1, 5}, Values{2, 3}), 2);
  EXPECT_TRUE(
      std::isnan(LargestDifference(Values{1, nan, 1}, Values{1, 2, 9})));
  EXPECT_TRUE(std::isinf(LargestDifference(Values{1}, Values{1, 2})));
  EXPECT_TRUE(std::isnan(LargestMagnitude(Values{1, nan, 2})));
  EXPECT_EQ(LargestMagnitude(Values{1, -3}), 3);
}

TEST(NumbersTest, UnitsInTheLastPlace) {
  EXPECT_EQ(UnitInLastPlace(1, 24), 0x1p-23);
  EXPECT_EQ(UnitInLastPlace(-1.99, 24), 0x1p-23);
  EXPECT_EQ(UnitInLastPlace(2, 8), 0x1p-6);
  EXPECT_EQ(UnitInLastPlace(0, 24), 0);
}

TEST(NumbersTest, OrdersByLayerThenName) {
  CheckCase check;
  check.layers = {{"the second-named", {"b"}}, {"another", {"a", "none"}}};
  for (const char* name : {"a", "b", "d", "c"}) {
    check.files.weights.tensors[name] = {};
  }
  EXPECT_EQ(NamesInOrder(check),
            (std::vector<std::string>{"b", "a", "c", "d"}));
  EXPECT_EQ(WithLayer(check, "a"), "a (another)");
  EXPECT_EQ(WithLayer(check, "c"), "c");
}

}  // namespace
}  // namespace lockstep::conformance
