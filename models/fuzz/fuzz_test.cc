// The fuzz check on seeds and on mutations of them; and what mutations are.
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/file_io.h"
#include "models/fuzz/mutate.h"
#include "models/fuzz/safetensors_check.h"

namespace lockstep {
namespace {

constexpr int kMutations = 5000;

TEST(SafetensorsFuzzTest, KeepsItsPromisesOnSeeds) {
  int accepted = 0;
  for (const std::string& seed : SafetensorsSeeds()) {
    bool ok = false;
    EXPECT_EQ(CheckSafetensors(seed, ok), "");
    accepted += ok ? 1 : 0;
  }
  EXPECT_EQ(SafetensorsSeeds().size(), 8u);
  EXPECT_EQ(accepted, 5);
}

TEST(SafetensorsFuzzTest, KeepsItsPromisesOnMutations) {
  std::mt19937 random(17);
  const std::vector<std::string> seeds = SafetensorsSeeds();
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    bool ok = false;
    ASSERT_EQ(CheckSafetensors(Mutated(seeds, random), ok), "")
        << "mutation " << i;
    accepted += ok ? 1 : 0;
  }
  // Else the mutations would have tested the refusals alone.
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

TEST(MutateTest, MakesManyInputsOfFew) {
  std::mt19937 random(17);
  const std::vector<std::string> seeds = {"", "{\"a\": [1, 2, 3]}"};
  std::set<std::string> inputs;
  for (int i = 0; i < 1000; ++i) inputs.insert(Mutated(seeds, random));
  EXPECT_GT(inputs.size(), 500u);
}

TEST(MutateTest, WritesSeedsAsTheyAre) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/seeds/new");
  const std::vector<std::string> seeds = {"", std::string("\0\xff", 2)};
  ASSERT_THAT(WriteSeeds(folder, seeds), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ReadFile(absl::StrCat(folder, "/seed-", i)),
                IsOkAndHolds(seeds[i]));
  }
  EXPECT_FALSE(WriteSeeds("/dev/null/x", seeds).ok());
}

// The control: a message that breaks each of its rules.
TEST(MutateTest, FindsOutABadMessage) {
  const auto wrong = [](const std::string& message) {
    return CheckMessage(absl::DataLossError(message), "f");
  };
  EXPECT_EQ(wrong("f: is odd"), "");
  EXPECT_NE(wrong("is odd"), "");
  EXPECT_NE(wrong("f: is\nodd"), "");
  EXPECT_NE(wrong("f: is \x1b[1modd"), "");
  EXPECT_NE(wrong(absl::StrCat("f: ", std::string(1000, 'x'))), "");
}

}  // namespace
}  // namespace lockstep
