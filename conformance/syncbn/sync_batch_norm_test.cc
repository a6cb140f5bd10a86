// SyncBatchNorm over N ranks is batch norm over the whole batch. The tests
// compare it with one process in float64, in a matrix of layouts, types,
// batches, channels, pixels, parameters, momentum, profiles and world sizes, or
// in a slice of this matrix (slice.h). The mutants are the controls.
// conformance/mutants/all_mutants_test checks for all folders that each check
// has a mutant, and that no mutant is reported as another.
#include "syncbn/sync_batch_norm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

std::string NameOf(const testing::TestParamInfo<MatrixPart>& info) {
  return ToString(info.param);
}

std::vector<MatrixPart> PartsAt(const std::vector<int>& world_sizes) {
  return PartsOf(world_sizes, kActivationTypes);
}

ClaimCellId OnThreads(int world_size, DataType type,
                      const char* kernels = "CPU kernels") {
  return {"sync_batch_norm", absl::StrCat("threads, ", kernels), world_size,
          Name(type)};
}

std::unique_ptr<BatchNormKernels> MakePlainKernels() {
  return std::make_unique<PlainKernels>();
}

void CheckProblem(const BatchNormProblem& problem,
                  const std::vector<BatchNormVariant>& variants,
                  const KernelsFactory& make_kernels, ClaimRecorder& recorder) {
  const SolvedProblem solved = SolveProblem(problem);
  ASSERT_THAT(CheckMeaning(solved), IsOk());
  const auto runs = RunVariants(Backend::kThreads, solved, variants,
                                SyncBatchNormOver(make_kernels));
  ASSERT_THAT(runs, IsOk());
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto error = MeasureRun(solved, variants[v], (*runs)[v]);
    ASSERT_THAT(error, IsOk());
    recorder.Measure(*error);
  }
}

// Returns those of a part's problems that are tried. Each part tries other
// problems, also as the first, which every slice contains.
std::vector<BatchNormProblem> PartOf(std::vector<BatchNormProblem> problems) {
  const int world_size = problems[0].world_size;
  const uint64_t part = static_cast<uint64_t>(world_size) * 64 +
                        static_cast<uint64_t>(problems[0].type) * 8 +
                        static_cast<uint64_t>(problems[0].batches);
  const auto first = static_cast<ptrdiff_t>(part % problems.size());
  std::rotate(problems.begin(), problems.begin() + first, problems.end());
  return SliceOf(problems, world_size == 8 ? 24 : 10, part);
}

using VariantsOf =
    std::vector<BatchNormVariant>(const BatchNormProblem& problem);

// Checks some of the problems, over the CPU's kernels.
void CheckPart(const std::vector<BatchNormProblem>& problems,
               VariantsOf& variants_of) {
  ClaimRecorder recorder(OnThreads(problems[0].world_size, problems[0].type));
  for (const auto& problem : PartOf(problems)) {
    CheckProblem(problem, variants_of(problem), MakeCpuKernels, recorder);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class SyncBatchNormMatrixTest : public testing::TestWithParam<MatrixPart> {};

TEST_P(SyncBatchNormMatrixTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  CheckPart(ProblemsOf(world_size, type, batches), AllVariants);
}

INSTANTIATE_TEST_SUITE_P(Parts, SyncBatchNormMatrixTest,
                         testing::ValuesIn(PartsAt({1, 2, 3, 4, 8})), NameOf);

// With one value per channel on one rank, all ranks refuse the batch with the
// same message. In the other profile all ranks accept it.
TEST(OneValueTest, IsRefusedOrAcceptedOnEveryRank) {
  for (const int world_size : {2, 3, 8}) {
    for (const auto& problem : SliceOf(OneValueProblems(world_size), 4)) {
      ClaimRecorder recorder(OnThreads(world_size, problem.type));
      CheckProblem(problem, AllVariants(problem), MakeCpuKernels, recorder);
    }
  }
}

// Covers what the matrix is too small for: segments, and stores past the
// caches.
TEST(LargeBatchTest, IsBatchNormOfTheWholeBatch) {
  std::vector<BatchNormProblem> problems = LargeProblems();
  if (!IsExhaustive()) problems.resize(2);
  for (const auto& problem : problems) {
    ClaimRecorder recorder(OnThreads(problem.world_size, problem.type));
    CheckProblem(problem, LayoutVariants(problem), MakeCpuKernels, recorder);
  }
}

class FusedSyncBatchNormTest : public testing::TestWithParam<MatrixPart> {};

TEST_P(FusedSyncBatchNormTest, IsFusedBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  CheckPart(FusedProblemsOf(world_size, type, batches), LayoutVariants);
}

INSTANTIATE_TEST_SUITE_P(Parts, FusedSyncBatchNormTest,
                         testing::ValuesIn(PartsAt({1, 3})), NameOf);

// These kernels share no code with the CPU's. A failure with both shows a
// mistake in their common part, the order of kernels and messages.
class PlainSyncBatchNormTest : public testing::TestWithParam<MatrixPart> {};

TEST_P(PlainSyncBatchNormTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder(OnThreads(world_size, type, "plain kernels"));
  for (BatchNormProblem problem :
       PartOf(FusedProblemsOf(world_size, type, batches))) {
    CheckProblem(problem, LayoutVariants(problem), MakePlainKernels, recorder);
    if (HasFatalFailure()) return;
    if (problem.fused != Fused::kRelu) continue;
    problem.fused = Fused::kNothing;
    CheckProblem(problem, AllVariants(problem), MakePlainKernels, recorder);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, PlainSyncBatchNormTest,
                         testing::ValuesIn(PartsAt({2})), NameOf);

TEST(BatchNormMutantsTest, WithoutAMutationPasses) {
  for (const BatchNormProblem& problem : SliceOf(MutantProblems(), 20)) {
    const SolvedProblem solved = SolveProblem(problem);
    ASSERT_THAT(CheckMeaning(solved), IsOk());
    ASSERT_THAT(CheckMutated(CpuLayersOnThreads(), {}, /*twice=*/true, solved,
                             AllVariants(problem)),
                testing::Each(IsOk()));
  }
}

class BatchNormMutantTest : public testing::TestWithParam<Mutant> {};

// In every case in which a mutant must show, the first failing check is the
// mutant's own, and its message names the mistake.
TEST_P(BatchNormMutantTest, IsRejectedByWhatIsThereForIt) {
  const auto cases = GetParam().plant_everywhere();
  ASSERT_THAT(cases, IsOk());
  RecordProperty("cases", absl::StrCat(*cases));
  EXPECT_GT(*cases, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BatchNormMutantTest,
                         testing::ValuesIn(BatchNormMutants().mutants),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::conformance
