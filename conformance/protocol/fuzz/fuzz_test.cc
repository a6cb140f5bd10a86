// The fuzz checks on seeds and on mutations of them.
#include <random>
#include <string>
#include <vector>

#include "conformance/protocol/fuzz/protocol_check.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"

namespace lockstep {
namespace {

constexpr int kMutations = 5000;

using Check = std::string (*)(const std::string& text, bool& accepted);

// Also that some mutations are accepted: else they would have tested the
// refusals alone.
void ExpectPromisesKept(Check check, const std::vector<std::string>& seeds) {
  for (const std::string& seed : seeds) {
    bool accepted = false;
    EXPECT_EQ(check(seed, accepted), "");
    EXPECT_TRUE(accepted);
  }
  std::mt19937 random(17);
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    bool ok = false;
    const std::string text = Mutated(seeds, random);
    ASSERT_EQ(check(text, ok), "") << text;
    accepted += ok ? 1 : 0;
  }
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

TEST(ProtocolFuzzTest, ReaderOfCasesKeepsItsPromises) {
  ExpectPromisesKept(CheckCaseText, CaseSeeds());
}

TEST(ProtocolFuzzTest, ReaderOfRankOutputsKeepsItsPromises) {
  ExpectPromisesKept(CheckRankOutputText, RankOutputSeeds());
}

}  // namespace
}  // namespace lockstep
