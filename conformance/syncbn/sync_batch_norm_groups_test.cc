// What ranks do together: processes give the bits of threads and every run
// those of the last; and what goes wrong on one rank ends on all of them, in an
// error that says so.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/onednn_batch_norm.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::unique_ptr<BatchNormKernels> MakeKernels() {
  return std::make_unique<CpuBatchNormKernels>();
}

struct Part {
  int world_size;
  DataType type;
};

class SyncBatchNormBackendsTest : public testing::TestWithParam<Part> {};

// A slice: every kind of batch, of 3 and 64 channels, affine, with ReLU alone
// and with all that is fused.
TEST_P(SyncBatchNormBackendsTest, GiveTheSameBits) {
  const auto& [world_size, type] = GetParam();
  ClaimRecorder claim(
      {"sync_batch_norm", "processes, CPU kernels", world_size, Name(type)});
  ClaimRecorder same_bits({"sync_batch_norm_bits", "threads and processes",
                           world_size, Name(type)});
  const std::vector<BatchNormVariant> variants = AllVariants();
  for (const RankBatches batches : kAllBatches) {
    std::vector<BatchNormProblem> problems;
    for (const auto& problem : FusedProblemsOf(world_size, type, batches)) {
      if (problem.affine && problem.hw > 1 &&
          (problem.fused == Fused::kRelu || problem.fused == Fused::kInPlace)) {
        problems.push_back(problem);
      }
    }
    for (const auto& problem : problems) {
      const SolvedProblem solved = SolveProblem(problem);
      const auto make = SyncBatchNormOver(MakeKernels);
      const auto threads =
          RunVariants(Backend::kThreads, solved, variants, make);
      const auto again = RunVariants(Backend::kThreads, solved, variants, make);
      const auto processes =
          RunVariants(Backend::kProcesses, solved, variants, make);
      ASSERT_THAT(threads, IsOk());
      ASSERT_THAT(again, IsOk());
      ASSERT_THAT(processes, IsOk());
      for (size_t v = 0; v < variants.size(); ++v) {
        const auto error = MeasureRun(solved, variants[v], (*processes)[v]);
        ASSERT_THAT(error, IsOk());
        claim.Measure(*error);
        ASSERT_THAT(CheckSameBits(solved, variants[v], (*threads)[v],
                                  (*again)[v], "in another run"),
                    IsOk());
        ASSERT_THAT(CheckSameBits(solved, variants[v], (*threads)[v],
                                  (*processes)[v], "as processes"),
                    IsOk());
        same_bits.AddExact();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, SyncBatchNormBackendsTest,
                         testing::Values(Part{2, DataType::kFloat32},
                                         Part{3, DataType::kBFloat16},
                                         Part{2, DataType::kFloat64},
                                         Part{4, DataType::kFloat16}),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param.world_size, "_",
                                               Name(info.param.type));
                         });

// One rank's layer of one channel, with n samples of one pixel.
class SmallLayer {
 public:
  SmallLayer(const BatchNormOptions& options, int64_t n)
      : options_(options),
        x_(static_cast<size_t>(n * options.channels), 1),
        y_(x_.size()),
        mean_(static_cast<size_t>(options.channels)),
        variance_(mean_.size(), 1),
        weight_(mean_.size(), 1),
        bias_(mean_.size()),
        saved_(static_cast<size_t>(
            StatisticsRecord{.channels = options.channels}.size_bytes())) {
    forwards_ = {.shape = {.n = n, .c = options.channels, .hw = 1},
                 .x = x_,
                 .residual = {},
                 .weight = weight_,
                 .bias = bias_,
                 .running = {mean_, variance_, &batches_},
                 .y = y_,
                 .saved = saved_};
  }

  absl::Status Forward(Communicator& group) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto layer,
                              SyncBatchNorm::Create(options_, kernels_, group));
    return layer->Forward(forwards_);
  }

  BatchNorm::Forwards& forwards() { return forwards_; }
  int64_t batches() const { return batches_; }
  bool IsUntouched() const {
    return mean_ == std::vector<float>(mean_.size()) &&
           variance_ == std::vector<float>(mean_.size(), 1) && batches_ == 0;
  }

 private:
  const BatchNormOptions options_;
  CpuBatchNormKernels kernels_;
  std::vector<float> x_;
  std::vector<float> y_;
  std::vector<float> mean_;
  std::vector<float> variance_;
  int64_t batches_ = 0;
  std::vector<float> weight_;
  std::vector<float> bias_;
  std::vector<std::byte> saved_;
  BatchNorm::Forwards forwards_;
};

BatchNormOptions OptionsOf(const BatchNormSemantics& semantics,
                           int64_t channels = 3) {
  BatchNormOptions options;
  options.channels = channels;
  options.semantics = semantics;
  return options;
}

// What a rank gets, and that its running statistics are as they were.
absl::Status ForwardUntouched(SmallLayer& layer, Communicator& group) {
  const absl::Status status = layer.Forward(group);
  return layer.IsUntouched()
             ? status
             : absl::InternalError("the running statistics have changed");
}

RunRanksOptions ShortTimeout() {
  RunRanksOptions options;
  options.group.timeout = absl::Seconds(1);
  options.deadline = absl::Seconds(30);
  return options;
}

MATCHER(IsOneLine, "is one line") {
  return arg.find('\n') == std::string::npos;
}

TEST(SyncBatchNormErrorsTest, OneValueIsRefusedOnEveryRank) {
  for (const int owner : {0, 1, 2}) {
    const auto statuses =
        RunRanks(Backend::kThreads, 3, [&](Communicator& group) {
          SmallLayer layer(OptionsOf(kTorchBatchNorm),
                           group.rank() == owner ? 1 : 0);
          return ForwardUntouched(layer, group);
        });
    EXPECT_THAT(
        statuses,
        Each(StatusIs(absl::StatusCode::kInvalidArgument,
                      AllOf(HasSubstr("one value per channel"), IsOneLine()))));
    EXPECT_THAT(statuses, Each(statuses[0]));
  }
}

TEST(SyncBatchNormErrorsTest, OneValueIsTrainedOnInPaddle) {
  const auto statuses =
      RunRanks(Backend::kThreads, 3, [&](Communicator& group) -> absl::Status {
        SmallLayer layer(OptionsOf(kPaddleBatchNorm), group.rank() == 1);
        LOCKSTEP_RETURN_IF_ERROR(layer.Forward(group));
        return layer.batches() == 1 ? absl::OkStatus()
                                    : absl::InternalError("not counted");
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(SyncBatchNormErrorsTest, AnEmptyGlobalBatchChangesNothing) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    const auto statuses =
        RunRanks(Backend::kThreads, 3, [&](Communicator& group) {
          SmallLayer layer(OptionsOf(semantics), 0);
          return ForwardUntouched(layer, group);
        });
    EXPECT_THAT(statuses, Each(IsOk()));
  }
}

TEST(SyncBatchNormErrorsTest, RanksWithOtherChannelsAreTold) {
  const auto statuses =
      RunRanks(Backend::kThreads, 3, [&](Communicator& group) {
        SmallLayer layer(OptionsOf(kTorchBatchNorm, group.rank() == 2 ? 5 : 3),
                         2);
        return ForwardUntouched(layer, group);
      });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("ranks disagree"),
                          HasSubstr("rank 2 called AllGather"), IsOneLine()))));
}

// A rank whose arguments are wrong says what is, and the others are told.
TEST(SyncBatchNormErrorsTest, WrongArgumentsOfOneRankEndOnAll) {
  const auto statuses =
      RunRanks(Backend::kThreads, 3, [&](Communicator& group) {
        SmallLayer layer(OptionsOf(kTorchBatchNorm), 2);
        if (group.rank() == 1) layer.forwards().y.count = 5;
        return ForwardUntouched(layer, group);
      });
  const auto cause =
      AllOf(HasSubstr("y has 5 elements, must have 6"), IsOneLine());
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument, cause)));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(std::string(statuses[static_cast<size_t>(rank)].message()),
                HasSubstr("rank 1 called AllGather"));
  }
}

// An empty rank that does not take part is a fault that ends in time.
TEST(SyncBatchNormErrorsTest, AnEmptyRankThatLeavesIsNamed) {
  const auto statuses = RunRanks(
      Backend::kThreads, 3,
      [&](Communicator& group) -> absl::Status {
        if (group.rank() == 1) return absl::OkStatus();
        SmallLayer layer(OptionsOf(kTorchBatchNorm), 2);
        return ForwardUntouched(layer, group);
      },
      ShortTimeout());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(
        statuses[static_cast<size_t>(rank)],
        StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 left")));
  }
}

TEST(SyncBatchNormErrorsTest, AnEmptyRankThatStaysAwayIsNamedInTime) {
  std::array<absl::Notification, 3> done;
  const auto statuses = RunRanks(
      Backend::kThreads, 3,
      [&](Communicator& group) -> absl::Status {
        if (group.rank() == 1) {
          done[0].WaitForNotification();
          done[2].WaitForNotification();
          return absl::OkStatus();
        }
        SmallLayer layer(OptionsOf(kTorchBatchNorm), 2);
        const absl::Status status = ForwardUntouched(layer, group);
        done[static_cast<size_t>(group.rank())].Notify();
        return status;
      },
      ShortTimeout());
  for (const int rank : {0, 2}) {
    EXPECT_THAT(statuses[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 1"), IsOneLine())));
  }
}

// Local batch norm through oneDNN: batch norm of one rank, in every layer that
// has it; and of two ranks it is not, and the checks say so.

absl::StatusOr<std::unique_ptr<BatchNorm>> MakeLocal(
    const BatchNormOptions& options, Communicator&) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                            OnednnBatchNorm::Create(options));
  return layer;
}

class LocalBatchNormTest : public testing::TestWithParam<RankBatches> {};

TEST_P(LocalBatchNormTest, IsBatchNormOfOneRank) {
  std::vector<BatchNormProblem> problems =
      ProblemsOf(1, DataType::kFloat32, GetParam());
  for (const auto& fused : FusedProblemsOf(1, DataType::kFloat32, GetParam())) {
    problems.push_back(fused);
  }
  const std::vector<BatchNormVariant> variants = AllVariants();
  double largest = 0;
  for (const BatchNormProblem& problem : problems) {
    const SolvedProblem solved = SolveProblem(problem);
    ASSERT_THAT(CheckMeaning(solved), IsOk());
    const auto runs =
        RunVariants(Backend::kThreads, solved, variants, MakeLocal);
    ASSERT_THAT(runs, IsOk());
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto error = MeasureRun(solved, variants[v], (*runs)[v]);
      ASSERT_THAT(error, IsOk());
      largest = std::max(largest, *error);
    }
  }
  // Float32 rounds, but where the only rank is empty and there is nothing to
  // round: any other measure of 0 is one that was not taken.
  EXPECT_EQ(largest == 0, GetParam() == RankBatches::kEmptyRank) << largest;
  EXPECT_LE(largest, 1);
}

INSTANTIATE_TEST_SUITE_P(All, LocalBatchNormTest,
                         testing::ValuesIn(kAllBatches),
                         [](const auto& info) { return Name(info.param); });

TEST(LocalBatchNormControlTest, IsNotBatchNormOfTwoRanks) {
  for (const auto& problem :
       ProblemsOf(2, DataType::kFloat32, RankBatches::kUneven)) {
    // Of one value per channel on a rank, it is refused.
    if (problem.hw == 1) continue;
    const SolvedProblem solved = SolveProblem(problem);
    const std::vector<BatchNormVariant> variants = LayoutVariants();
    const auto runs =
        RunVariants(Backend::kThreads, solved, variants, MakeLocal);
    ASSERT_THAT(runs, IsOk());
    for (size_t v = 0; v < variants.size(); ++v) {
      EXPECT_THAT(
          CheckRun(solved, variants[v], (*runs)[v]),
          StatusIs(absl::StatusCode::kDataLoss,
                   AllOf(StartsWith("Output: "),
                         HasSubstr("as if this rank's own batch were"))));
    }
  }
}

}  // namespace
}  // namespace lockstep
