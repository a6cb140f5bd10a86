// SyncBatchNorm over N ranks is batch norm over the whole batch: the matrix of
// layouts, types, batches, channels, pixels, parameters, momentum, profiles and
// world sizes, against one process in float64.
#include "syncbn/sync_batch_norm.h"

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/plain_kernels.h"
#include "conformance/syncbn/run_variants.h"
#include "conformance/syncbn/solved_problem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {
namespace {

// Of a group that hangs; no measure of its speed.
RunRanksOptions Patient() {
  RunRanksOptions options;
  options.deadline = absl::Minutes(3);
  return options;
}

// Problems of one kind.
struct Part {
  int world_size;
  DataType type;
  Batches batches;
};

std::string NameOf(const testing::TestParamInfo<Part>& info) {
  const Part& part = info.param;
  return absl::StrCat("P", part.world_size, "_", Name(part.type), "_",
                      Name(part.batches));
}

std::vector<Part> PartsAt(const std::vector<int>& world_sizes) {
  std::vector<Part> parts;
  for (const int world_size : world_sizes) {
    for (const DataType type : kActivationTypes) {
      for (const Batches batches : kAllBatches) {
        parts.push_back({world_size, type, batches});
      }
    }
  }
  return parts;
}

ClaimSubject OnThreads(int world_size, DataType type,
                       const char* kernels = "CPU kernels") {
  return {"sync_batch_norm", absl::StrCat("threads, ", kernels), world_size,
          Name(type)};
}

std::unique_ptr<BatchNormKernels> MakeCpuKernels() {
  return std::make_unique<CpuBatchNormKernels>();
}
std::unique_ptr<BatchNormKernels> MakePlainKernels() {
  return std::make_unique<PlainKernels>();
}

void CheckProblem(const BatchNormProblem& problem,
                  const std::vector<BatchNormVariant>& variants,
                  const KernelsFactory& make_kernels, ClaimRecorder& recorder) {
  const BatchNormExam exam = MakeExam(problem);
  ASSERT_THAT(CheckMeaning(exam), IsOk());
  const auto runs = RunVariants(Backend::kThreads, exam, variants,
                                SyncBatchNormOver(make_kernels), Patient());
  ASSERT_THAT(runs, IsOk());
  for (size_t v = 0; v < variants.size(); ++v) {
    const auto error = MeasureRun(exam, variants[v], (*runs)[v]);
    ASSERT_THAT(error, IsOk());
    recorder.Measure(*error);
  }
}

class SyncBatchNormMatrixTest : public testing::TestWithParam<Part> {};

TEST_P(SyncBatchNormMatrixTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder(OnThreads(world_size, type));
  for (const auto& problem : ProblemsOf(world_size, type, batches)) {
    CheckProblem(problem, AllVariants(), MakeCpuKernels, recorder);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, SyncBatchNormMatrixTest,
                         testing::ValuesIn(PartsAt({1, 2, 3, 4, 8})), NameOf);

// One value per channel on one rank: refused on all of them, in the same words;
// or, in the other profile, accepted on all.
TEST(OneValueTest, IsRefusedOrAcceptedOnEveryRank) {
  for (const int world_size : {2, 3, 8}) {
    for (const auto& problem : OneValueProblems(world_size)) {
      ClaimRecorder recorder(OnThreads(world_size, problem.type));
      CheckProblem(problem, AllVariants(), MakeCpuKernels, recorder);
    }
  }
}

// What the matrix is too small for: segments, and stores past the caches.
TEST(LargeBatchTest, IsBatchNormOfTheWholeBatch) {
  for (const auto& problem : LargeProblems()) {
    ClaimRecorder recorder(OnThreads(problem.world_size, problem.type));
    CheckProblem(problem, LayoutVariants(), MakeCpuKernels, recorder);
  }
}

class FusedSyncBatchNormTest : public testing::TestWithParam<Part> {};

TEST_P(FusedSyncBatchNormTest, IsFusedBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder(OnThreads(world_size, type));
  for (const auto& problem : FusedProblemsOf(world_size, type, batches)) {
    CheckProblem(problem, LayoutVariants(), MakeCpuKernels, recorder);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, FusedSyncBatchNormTest,
                         testing::ValuesIn(PartsAt({1, 3})), NameOf);

// Kernels that share no code with the CPU's, so that what the two have in
// common is known: the order of kernels and messages.
class PlainSyncBatchNormTest : public testing::TestWithParam<Part> {};

TEST_P(PlainSyncBatchNormTest, IsBatchNormOfTheWholeBatch) {
  const auto& [world_size, type, batches] = GetParam();
  ClaimRecorder recorder(OnThreads(world_size, type, "plain kernels"));
  for (BatchNormProblem problem : FusedProblemsOf(world_size, type, batches)) {
    CheckProblem(problem, LayoutVariants(), MakePlainKernels, recorder);
    if (HasFatalFailure()) return;
    if (problem.fused != Fused::kRelu) continue;
    problem.fused = Fused::kNothing;
    CheckProblem(problem, AllVariants(), MakePlainKernels, recorder);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, PlainSyncBatchNormTest,
                         testing::ValuesIn(PartsAt({2})), NameOf);

}  // namespace

// The suite's control: every planted fault is rejected in every case in which
// it must show, first by the check that is there for it, with a message that
// says so; and the same layers without a fault pass. That each check has a
// fault, and no fault is named for another, is asked of all folders at once
// (conformance/mutants/all_mutants_test.cc).

// How a failing test shows its parameter.
void PrintTo(const BatchNormFault& fault, std::ostream* out) {
  *out << fault.bug;
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(FaultyBatchNormTest, WithoutAFaultPasses) {
  BatchNormFault none;
  none.check = "SameBits";  // Ask it too.
  for (const BatchNormProblem& problem : FaultProblems(none)) {
    const BatchNormExam exam = MakeExam(problem);
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    ASSERT_THAT(CheckFaulty(none, exam, AllVariants()), testing::Each(IsOk()));
  }
}

class BatchNormFaultTest : public testing::TestWithParam<BatchNormFault> {};

TEST_P(BatchNormFaultTest, IsRejectedByWhatIsThereForIt) {
  const BatchNormFault& fault = GetParam();
  int shown = 0;
  for (const BatchNormProblem& problem : FaultProblems(fault)) {
    std::vector<std::vector<BatchNormVariant>> groups(1);
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      if (fault.breaks_group && !groups.back().empty()) groups.emplace_back();
      groups.back().push_back(variant);
    }
    if (groups.back().empty()) continue;
    const BatchNormExam exam = MakeExam(problem);
    for (const std::vector<BatchNormVariant>& variants : groups) {
      for (const absl::Status& status : CheckFaulty(fault, exam, variants)) {
        if (++shown == 1) RecordProperty("says", status.ToString());
        ASSERT_THAT(status,
                    StatusIs(absl::StatusCode::kDataLoss,
                             AllOf(StartsWith(absl::StrCat(fault.check, ": ")),
                                   HasSubstr(fault.says))))
            << ToString(problem) << ": " << fault.bug;
      }
    }
  }
  RecordProperty("cases", shown);
  EXPECT_GT(shown, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BatchNormFaultTest,
                         testing::ValuesIn(AllBatchNormFaults()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
