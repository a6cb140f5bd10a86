// Shadows have each step's samples in another order, and no others.
#include "conformance/check/shadows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "conformance/check/case_files.h"
#include "conformance/check/check_case.h"
#include "conformance/check/numbers.h"
#include "conformance/check/verdict.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Seven training samples in batches of three, and five test samples; sample i
// has the label i and the image i.
CheckCase SevenSamples() {
  CheckCase check;
  check.claims = {Claim::kRun, Claim::kGradients};
  check.one_rank.c.batch_sizes = {3};
  for (const auto& [part, size] :
       {std::pair<std::string, int64_t>{"train", 7}, {"test", 5}}) {
    std::vector<int64_t> labels(static_cast<size_t>(size));
    std::iota(labels.begin(), labels.end(), 0);
    const std::vector<float> images(labels.begin(), labels.end());
    check.files.data.tensors[part + ".labels"] = Int64Tensor({size}, labels);
    check.files.data.tensors[part + ".images"] =
        FloatTensor({size, 1, 1, 1}, images);
  }
  return check;
}

Values Get(const Shadow& shadow, const std::string& name) {
  return ToValues(shadow.files.data.tensors.at(name));
}

TEST(ShadowsTest, PermuteWithinBatches) {
  const std::vector<Shadow> shadows = ShadowsOf(SevenSamples());
  ASSERT_EQ(shadows.size(), 2u);
  const Values reversed = {2, 1, 0, 5, 4, 3, 6};
  const Values rotated = {1, 2, 0, 4, 5, 3, 6};
  EXPECT_EQ(Get(shadows[0], "train.labels"), reversed);
  EXPECT_EQ(Get(shadows[0], "train.images"), reversed);
  EXPECT_EQ(Get(shadows[1], "train.labels"), rotated);
  EXPECT_EQ(Get(shadows[0], "test.labels"), (Values{4, 3, 2, 1, 0}));
  EXPECT_EQ(Get(shadows[1], "test.images"), (Values{2, 3, 4, 0, 1}));
  EXPECT_EQ(shadows[0].plan.c, SevenSamples().one_rank.c);
}

TEST(ShadowsTest, NoneWhereNoNumberIsCompared) {
  CheckCase check = SevenSamples();
  check.claims = {Claim::kRun, Claim::kSamples};
  EXPECT_TRUE(ShadowsOf(check).empty());
  check = SevenSamples();
  check.one_rank.c.shuffle = true;
  EXPECT_TRUE(ShadowsOf(check).empty());
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

}  // namespace
}  // namespace lockstep
