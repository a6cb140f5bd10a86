// Tests the command itself, end to end.
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CommandOutcome RunIndices(const std::string& flags) {
  return RunCommand(absl::StrCat("sampler/indices ", flags),
                    /*deadline_seconds=*/60);
}

std::string OutputOf(const std::string& flags) {
  const CommandOutcome outcome = RunIndices(flags);
  EXPECT_EQ(outcome.exit_status, 0) << flags << "\n" << outcome.output;
  return outcome.output;
}

TEST(IndicesTest, PrintsWhatARankDraws) {
  const std::string two = "--dataset_size=11 --num_replicas=2 ";
  EXPECT_EQ(OutputOf(two), "0\n2\n4\n6\n8\n10\n");
  EXPECT_EQ(OutputOf(two + "--rank=1"), "1\n3\n5\n7\n9\n0\n");
  EXPECT_EQ(OutputOf(two + "--rank=1 --drop_last"), "1\n3\n5\n7\n9\n");
  EXPECT_EQ(OutputOf(two + "--rank=1 --semantics=exact"), "1\n3\n5\n7\n9\n");
  EXPECT_EQ(OutputOf(two + "--rank=1 --semantics=split"), "6\n7\n8\n9\n10\n");
  EXPECT_EQ(OutputOf("--semantics=paddle --dataset_size=10 --num_replicas=4 "
                     "--rank=2 --batch_size=2"),
            "4 5\n0\n");
}

TEST(IndicesTest, TakesTheNumberOfRanksByAnyOfItsNames) {
  for (const char* ranks : {"--nproc=4", "--world_size 4", "--world-size=4"}) {
    EXPECT_EQ(OutputOf(absl::StrCat("--dataset_size=9 --rank=3 ", ranks)),
              "3\n7\n2\n")
        << ranks;
  }
}

// The expected orders are torch.randperm(10) from seed 0 and numpy's shuffle
// for epoch 0.
TEST(IndicesTest, Shuffles) {
  const std::string one = "--dataset_size=10 --batch_size=10 --shuffle ";
  EXPECT_EQ(OutputOf(one), "4 1 7 5 3 9 0 8 6 2\n");
  EXPECT_EQ(OutputOf(one + "--semantics=exact"), "4 1 7 5 3 9 0 8 6 2\n");
  EXPECT_EQ(OutputOf(one + "--semantics=paddle"), "2 8 4 9 1 6 7 3 0 5\n");
  EXPECT_EQ(OutputOf(one + "--seed=1 --epoch=2"),
            OutputOf(one + "--seed=3 --epoch=0"));
  EXPECT_EQ(OutputOf(one + "--seed=18446744073709551615"),
            OutputOf(one + "--seed=-1"));
}

TEST(IndicesTest, CutsBatchesAndStartsWithin) {
  const std::string all = "--dataset_size=7 ";
  EXPECT_EQ(OutputOf(all + "--batch_size=3"), "0 1 2\n3 4 5\n6\n");
  EXPECT_EQ(OutputOf(all + "--batch_size=3 --start_index=5"), "5 6\n");
  EXPECT_EQ(OutputOf(all + "--start_index=5"), "5\n6\n");
  EXPECT_EQ(OutputOf(all + "--start_index=7"), "");
  EXPECT_EQ(OutputOf(all + "--semantics=paddle --batch_size=3 --drop_last"),
            "0 1 2\n3 4 5\n");
  EXPECT_EQ(OutputOf(all + "--semantics=paddle --batch_size=3 --drop_last "
                           "--start_index=1"),
            "1 2 3\n4 5\n");
  EXPECT_EQ(OutputOf(all + "--batch_size=3 --drop_last"), "0 1 2\n3 4 5\n6\n");
}

TEST(IndicesTest, PrintsMoreThanABlock) {
  std::string want;
  for (int64_t index = 0; index < 100'000; ++index) {
    absl::StrAppend(&want, index, index % 7 == 6 ? "\n" : " ");
  }
  want.back() = '\n';
  EXPECT_EQ(OutputOf("--dataset_size=100000 --batch_size=7"), want);
}

TEST(IndicesTest, DrawsFromATrillionSamples) {
  EXPECT_EQ(OutputOf("--dataset_size=1000000000000 --num_replicas=8 --rank=7 "
                     "--start_index=124999999999"),
            "999999999999\n");
  EXPECT_THAT(OutputOf("--dataset_size=1000000000000 --permutation=keyed "
                       "--shuffle --start_index=999999999999"),
              testing::MatchesRegex("[0-9]+\n"));
}

// The README shows commands and, under each, its output.
TEST(IndicesTest, DoesWhatTheReadmeShows) {
  std::ifstream readme("sampler/README.md");
  const std::string indent = "    ";
  const std::string prompt = indent + "$ indices ";
  std::string flags, want;
  int shown = 0;
  for (std::string line; std::getline(readme, line);) {
    if (!flags.empty() &&
        (!line.starts_with(indent) || line.starts_with(prompt))) {
      EXPECT_EQ(OutputOf("--dataset_size=11 " + flags), want) << flags;
      ++shown;
      flags.clear();
      want.clear();
    }
    if (line.starts_with(prompt)) {
      flags = line.substr(prompt.size());
    } else if (!flags.empty()) {
      absl::StrAppend(&want, line.substr(indent.size()), "\n");
    }
  }
  EXPECT_EQ(shown, 10);
}

TEST(IndicesTest, SaysThatPaddleHasNoSeed) {
  const CommandOutcome outcome =
      RunIndices("--semantics=paddle --dataset_size=1 --seed=3");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--seed changes nothing"));
}

TEST(IndicesTest, SaysThatTheDatasetSizeIsRequired) {
  const CommandOutcome outcome = RunIndices("--num_replicas=2");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_EQ(outcome.output, "indices: --dataset_size=N is required\n");
}

TEST(IndicesTest, ExplainsItsFlagsAndNamesOneThatIsWrong) {
  ExpectUsage(RunIndices("--help"), "indices");
  const std::pair<const char*, const char*> cases[] = {
      {"--dataset_size=0", "--dataset_size is 0, must be in [1,"},
      {"--dataset_size=-3", "--dataset_size is -3"},
      {"--dataset_size=three", "--dataset_size"},
      {"--dataset_size=3000000000 --shuffle", "--dataset_size is 3000000000"},
      {"--dataset_size=9 --semantics=tf", "--semantics: 'tf' is not one of"},
      {"--dataset_size=9 --num_replicas=0", "--num_replicas is 0"},
      {"--dataset_size=9 --nproc=0", "--num_replicas is 0"},
      {"--nproc=2 --num_replicas=2", "--nproc and --num_replicas are one flag"},
      {"--dataset_size=9 --rank=1", "--rank is 1, must be in [0, 1)"},
      {"--dataset_size=9 --num_replicas=2 --rank=-1", "--rank is -1"},
      {"--dataset_size=9 --batch_size=0", "--batch_size is '0'"},
      {"--dataset_size=9 --batch_size=two", "--batch_size is 'two'"},
      {"--dataset_size=9 --seed=x", "--seed is 'x'"},
      {"--dataset_size=9 --permutation=md5", "--permutation: 'md5'"},
      {"--dataset_size=9 --start_index=10", "--start_index is 10"},
      {"--dataset_size=9 --start_index=-1", "--start_index is -1"},
      {"--dataset_size=3 --num_replicas=4 --drop_last",
       "--drop_last leaves no sample"},
      {"--dataset_size=3 --semantics=paddle --batch_size=4 --drop_last",
       "--drop_last leaves no batch"},
      {"--dataset_size=3 --semantics=exact --drop_last", "--drop_last: exact"},
      {"--dataset_size=3 --semantics=split --shuffle", "--semantics: split"},
      {"--dataset_size=3 --semantics=paddle --shuffle --epoch=-1",
       "--epoch is -1"},
      {"--dataset_size=3 --semantics=paddle --permutation=keyed",
       "--permutation: paddle"},
      {"--dataset_size=9223372036854775807 --semantics=split",
       "--dataset_size is 9223372036854775807"},
      {"--dataset_size=3 --semantics=split --seed=abc", "--seed is 'abc'"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunIndices(flags), "indices", flags, expected);
  }
}

TEST(IndicesTest, FailsWhereItCannotWriteAndSaysThatMemoryIsShort) {
  EXPECT_EQ(RunIndices("--dataset_size=100 >/dev/full").exit_status, 1);
  const CommandOutcome outcome = RunCommand(
      "sh -c 'ulimit -v 1000000; exec sampler/indices "
      "--dataset_size=2000000000 --shuffle'",
      /*deadline_seconds=*/60);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(StartsWith("indices: "), HasSubstr("not enough memory")));
}

}  // namespace
}  // namespace lockstep
