// Reading what is documented, and that nothing else becomes so.
#include "conformance/check/documented.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "conformance/check/verdict.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kOne[] =
    R"([{"case": "evaluation", "claim": "evaluation",
         "cause": "evaluation_padded", "cited": "the manual"}])";

TEST(DocumentedTest, ReadsAFile) {
  const auto documented = ParseDocumented(kOne, "f.json");
  ASSERT_THAT(documented, IsOk());
  ASSERT_THAT(*documented, SizeIs(1));
  EXPECT_EQ((*documented)[0].case_name, "evaluation");
  EXPECT_EQ((*documented)[0].claim, Claim::kEvaluation);
  EXPECT_EQ((*documented)[0].cause, Cause::kEvaluationPadded);
  EXPECT_EQ((*documented)[0].cited, "the manual");
  const auto none = ParseDocumented("[]", "f.json");
  ASSERT_THAT(none, IsOk());
  EXPECT_THAT(*none, IsEmpty());
}

TEST(DocumentedTest, SaysWhatIsWrongWithAFile) {
  const auto expect_error = [](const std::string& text,
                               const std::string& says) {
    EXPECT_THAT(ParseDocumented(text, "f.json"),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(HasSubstr("f.json"), HasSubstr(says))))
        << text;
  };
  expect_error("", "");
  expect_error("{}", "not a JSON array");
  expect_error("[1]", "[0]");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "hangs"}])", "cited");
  expect_error(R"([{"case": "x", "claim": "x", "cause": "hangs",
                    "cited": "x"}])",
               "claim");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "x",
                    "cited": "x"}])",
               "cause");
  expect_error(R"([{"case": "x", "claim": "run", "cause": "hangs",
                    "cited": "x", "more": 1}])",
               "more");
}

TEST(DocumentedTest, OnlyTheSameFailureIsDocumented) {
  const auto documented = ParseDocumented(kOne, "f.json");
  ASSERT_THAT(documented, IsOk());
  Verdict same;
  same.case_name = "evaluation";
  same.claim = Claim::kEvaluation;
  same.cause = Cause::kEvaluationPadded;
  same.outcome = Outcome::kFailed;
  std::vector<Verdict> verdicts(5, same);
  verdicts[1].case_name = "even";
  verdicts[2].claim = Claim::kSamples;
  verdicts[3].cause = Cause::kMetricsUnweighted;
  verdicts[4].outcome = Outcome::kPassed;
  ApplyDocumented(*documented, verdicts);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kDocumented);
  EXPECT_EQ(verdicts[0].cited, "the manual");
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(verdicts[i].outcome, Outcome::kFailed) << i;
    EXPECT_EQ(verdicts[i].cited, "") << i;
  }
  EXPECT_EQ(verdicts[4].outcome, Outcome::kPassed);
}

}  // namespace
}  // namespace lockstep
