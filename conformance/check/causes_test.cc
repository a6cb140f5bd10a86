// Every cause is explained in whole sentences, with its placeholders filled.
#include "conformance/check/causes.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include "conformance/check/verdict.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(CausesTest, NamesAreUniqueAndInSnakeCase) {
  std::set<std::string> names;
  for (const Cause cause : AllCauses()) {
    const std::string name = CauseName(cause);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(std::all_of(name.begin(), name.end(), [](char c) {
      return std::islower(c) || c == '_';
    })) << name;
  }
  EXPECT_EQ(CauseName(Cause::kRanksShuffleApart), "ranks_shuffle_apart");
}

TEST(CausesTest, ListsEveryCause) {
  // The last of the enumeration.
  const int last = static_cast<int>(Cause::kMetricsOfOneRank);
  EXPECT_EQ(AllCauses().size(), static_cast<size_t>(last + 1));
  const std::set<Cause> causes(AllCauses().begin(), AllCauses().end());
  EXPECT_EQ(causes.size(), AllCauses().size());
}

TEST(CausesTest, ExplainsInSentences) {
  for (const Cause cause : AllCauses()) {
    if (cause == Cause::kNone) continue;
    const Explanation said = Explain(cause, {.k = 0.5,
                                             .world_size = 2,
                                             .rank = 1,
                                             .step = 3,
                                             .accumulate = 4,
                                             .tensors = "W3"});
    for (const std::string& sentence : {said.why, said.fix}) {
      EXPECT_TRUE(sentence.ends_with('.')) << sentence;
      EXPECT_FALSE(std::islower(sentence[0])) << sentence;
    }
    EXPECT_EQ(said.why.find('{'), std::string::npos) << said.why;
  }
  EXPECT_EQ(Explain(Cause::kNone, {}).why, "");
}

TEST(CausesTest, FillsInWhatIsKnown) {
  const std::string summed =
      Explain(Cause::kSummedNotAveraged,
              {.k = 2, .world_size = 2, .tensors = "W3 (the last)"})
          .why;
  EXPECT_EQ(summed,
            "Gradients of W3 (the last) are 2 times one rank's on 2 ranks: "
            "summed and not averaged, or reduced twice.");
  EXPECT_TRUE(Explain(Cause::kRankSkipsLastBatch, {.rank = 1})
                  .why.starts_with("Rank 1 leaves out"));
  EXPECT_NE(Explain(Cause::kWrongWorldSize, {}).fix.find("{world_size}"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
