// The pixels of a sample do not depend on ranks, workers or order. Loaders and
// trainers give one loader's pixels at every number of ranks and workers, also
// loaders that resume in the middle of an epoch. Mutants are rejected.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/loading/loading_checks.h"
#include "conformance/loading/loading_mutants.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

std::vector<LoadingCase> Grid(int world_size, bool mixtures) {
  std::vector<LoadingCase> cases;
  for (const int workers : {0, 1, 8}) {
    for (const int64_t batch_size : {1, 5, 8, 100}) {
      for (const bool contiguous : {false, true}) {
        cases.push_back({.world_size = world_size,
                         .workers = workers,
                         .batch_size = batch_size,
                         .contiguous = contiguous,
                         .shuffled = true,
                         .mixtures = mixtures});
      }
    }
  }
  return cases;
}

// Returns each case. If it has two batches or more, also returns the same case
// resumed half way through each epoch.
std::vector<LoadingCase> WithResumed(std::vector<LoadingCase> cases) {
  const size_t whole = cases.size();
  for (size_t i = 0; i < whole; ++i) {
    LoadingCase resumed = cases[i];
    const int64_t batches =
        (kLoadingSamples + resumed.batch_size - 1) / resumed.batch_size;
    resumed.first_batch = batches / 2;
    if (resumed.first_batch > 0) cases.push_back(resumed);
  }
  return cases;
}

class LoadingTest : public testing::TestWithParam<int> {};

TEST_P(LoadingTest, LoadersGiveEverySampleThePixelsOfOneRank) {
  ClaimRecorder recorder({"sample_pixels", "loaders", GetParam(), "float32"});
  const absl::StatusOr<LoadedSamples> one = LoadByLoaders({});
  const absl::StatusOr<LoadedSamples> other = LoadByLoaders({.seed = 99});
  ASSERT_THAT(one, IsOk());
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(CheckEpochsDiffer(*one), IsOk());
  EXPECT_THAT(CheckSamplesDiffer(*one), IsOk());
  EXPECT_THAT(CheckSeedsDiffer(*one, *other), IsOk());
  for (const LoadingCase& c :
       WithResumed(Grid(GetParam(), /*mixtures=*/true))) {
    const absl::StatusOr<LoadedSamples> run = LoadByLoaders(c);
    ASSERT_THAT(run, IsOk()) << c.name();
    ASSERT_THAT(CheckRunsAgree(c, *one, *run), IsOk());
    recorder.AddExact();
  }
}

TEST_P(LoadingTest, TrainersGiveEverySampleThePixelsOfOneRank) {
  ClaimRecorder recorder(
      {"sample_pixels", "trainer on threads", GetParam(), "float32"});
  const absl::StatusOr<LoadedSamples> one = LoadByLoaders({.mixtures = false});
  ASSERT_THAT(one, IsOk());
  for (const LoadingCase& c : Grid(GetParam(), /*mixtures=*/false)) {
    const absl::StatusOr<LoadedSamples> run = LoadByTrainer(c);
    ASSERT_THAT(run, IsOk()) << c.name();
    ASSERT_THAT(CheckRunsAgree(c, *one, *run), IsOk());
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, LoadingTest, testing::Values(1, 2, 3, 4),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

TEST(LoadingCheckTest, OneDifferentValueIsRejected) {
  absl::StatusOr<LoadedSamples> one = LoadByLoaders({});
  ASSERT_THAT(one, IsOk());
  LoadedSamples run = *one;
  run.at({1, 7}).pixels.back() += 1e-6f;
  EXPECT_THAT(CheckRunsAgree({}, *one, run),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("sample 7 of epoch 1, on rank 0")));
}

class LoadingMutantTest : public testing::TestWithParam<Mutant> {};

TEST_P(LoadingMutantTest, IsRejectedByWhatIsThereForIt) {
  EXPECT_THAT(PlantAndExpectCaught(GetParam()), IsOk());
}

INSTANTIATE_TEST_SUITE_P(All, LoadingMutantTest,
                         testing::ValuesIn(LoadingMutants().mutants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::conformance
