// Tests which kernels and messages a call makes, and in which order, with
// kernels and a group that record the calls. cpu/, cuda/ and
// //conformance/syncbn test the results of the kernels and the merge of
// moments.
#include "syncbn/sync_batch_norm.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/testing/device_tensor.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MergeMomentsTest, KeepsEqualMeansToTheBit) {
  const float mean = 1.1f;
  const Moments<float> a = {3, mean, 0};
  const Moments<float> b = {1000003, mean, 0};
  EXPECT_EQ(MergeMoments(a, b).mean, mean);
  EXPECT_EQ(MergeMoments(a, b).m2, 0);
}

TEST(MergeMomentsTest, HasNoCancellationFarFromZero) {
  // Two halves of 2^24 + {0, 2}: E[x^2] - E[x]^2 in float32 is garbage.
  const Moments<float> a = {2, 16777216.0f, 0};
  const Moments<float> b = {2, 16777218.0f, 0};
  EXPECT_EQ(MergeMoments(a, b).m2, 4);
}

TEST(VarianceTest, OfTooFewNumbersIsZeroOrNan) {
  for (const int64_t count : {0, 1}) {
    const Moments<double> moments = {count, 0, 0};
    EXPECT_EQ(BiasedVariance(moments), 0);
    EXPECT_TRUE(std::isnan(UnbiasedVariance(moments)));
  }
}

constexpr int64_t kChannels = 3;
constexpr int64_t kRecordBytes = 16 + 32;  // 24 bytes of floats, rounded up.

using Log = std::vector<std::string>;

// The group of rank 1 of 3. It records the size of each message and, for an
// all-gather, the position of this rank's part.
class RecordingGroup : public FakeCommunicator {
 public:
  explicit RecordingGroup(Log& log) : log_(log) {}

  int rank() const override { return 1; }
  int world_size() const override { return ranks; }
  absl::Status Run(const Collective& call) override {
    const bool gather = call.operation == Operation::kAllGather;
    if (!call.refusal.ok()) {
      log_.push_back(gather ? "refuse to gather" : "refuse to reduce");
      refusal = call.refusal;
      return failure;
    }
    log_.push_back(absl::StrCat(gather ? "gather " : "reduce ",
                                call.input.count, " ", Name(call.input.type)));
    if (gather) {
      EXPECT_EQ(call.output.count, 3 * call.input.count);
      EXPECT_EQ(call.input.data, call.output.bytes() + call.input.count);
    } else {
      EXPECT_EQ(call.input.data, call.output.data);
    }
    return failure;
  }

  int ranks = 3;
  absl::Status failure;
  absl::Status refusal;  // The last error sent to the others.

 private:
  Log& log_;
};

class NotingKernels : public BatchNormKernels {
 public:
  explicit NotingKernels(Log& log) : log_(log) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    auto owner = std::make_shared<std::vector<double>>(bytes / 8 + 1);
    return std::shared_ptr<std::byte>(
        owner, reinterpret_cast<std::byte*>(owner->data()));
  }
  absl::Status ComputeMoments(const ActivationShape&, ConstBuffer,
                              std::byte*) override {
    log_.push_back("moments");
    return failure;
  }
  absl::Status Merge(const MergeCall& call) override {
    EXPECT_EQ(call.record.size_bytes(), kRecordBytes);
    merge = call.options;
    log_.push_back(absl::StrCat("merge ", call.ranks,
                                call.running.tracked() ? " tracked" : ""));
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> ReadCount(const std::byte*) override {
    log_.push_back("read count");
    return values;
  }
  absl::Status UseRunning(const RunningCall&) override {
    log_.push_back("running");
    return absl::OkStatus();
  }
  absl::Status Normalize(const NormalizeCall&) override {
    log_.push_back("normalize");
    return absl::OkStatus();
  }
  absl::Status BackwardReduce(const BackwardCall& call) override {
    EXPECT_EQ(call.sums.count, 2 * kChannels);
    const bool gradients = call.dweight.count + call.dbias.count > 0;
    log_.push_back(gradients ? "sums and gradients" : "sums");
    return failure;
  }
  absl::Status BackwardInput(const BackwardCall&) override {
    log_.push_back("dx");
    return absl::OkStatus();
  }

  int64_t values = 100;  // The values of all ranks.
  MergeOptions merge;    // The options of the last merge.
  absl::Status failure;  // The error of work before a message.

 private:
  Log& log_;
};

// Tests calls on samples of one pixel.
class SyncBatchNormTest : public testing::Test {
 protected:
  SyncBatchNormTest() { options_.channels = kChannels; }

  absl::Status Forward(bool training, int64_t n = 2) {
    return With(n, [&](SyncBatchNorm& layer, LayerTensors& tensors) {
      BatchNorm::ForwardBuffers forwards =
          tensors.ForwardBuffers({.training = training});
      if (short_weight_) --forwards.weight.count;
      return layer.Forward(forwards);
    });
  }

  absl::Status Backward(bool training, int64_t n = 2) {
    return With(n, [&](SyncBatchNorm& layer, LayerTensors& tensors) {
      BatchNorm::BackwardBuffers backwards =
          tensors.BackwardBuffers({.training = training});
      if (short_weight_) --backwards.weight.count;
      return layer.Backward(backwards, [&] { log_.push_back("ready"); });
    });
  }

  template <typename Call>
  absl::Status With(int64_t n, Call call) {
    const absl::StatusOr<std::unique_ptr<SyncBatchNorm>> layer =
        local_ ? SyncBatchNorm::CreateLocal(options_, kernels_)
               : SyncBatchNorm::Create(options_, kernels_, group_);
    if (!layer.ok()) return layer.status();
    const std::vector<double> activations(static_cast<size_t>(n * kChannels));
    const std::vector<double> parameters(kChannels);
    LayerTensors tensors(
        options_, {n, kChannels, 1}, DataType::kFloat32,
        {activations, activations, activations, parameters, parameters});
    tensors.batches = batches_;
    const absl::Status status = call(**layer, tensors);
    batches_ = tensors.batches;
    return status;
  }

  bool local_ = false;
  bool short_weight_ = false;
  BatchNormOptions options_;
  Log log_;
  RecordingGroup group_{log_};
  NotingKernels kernels_{log_};
  int64_t batches_ = 4;
};

TEST_F(SyncBatchNormTest, SendsOneMessageEachWayInTrainingAlone) {
  const auto expect = [&](bool training, int64_t n, const Log& want) {
    log_.clear();
    batches_ = 4;
    EXPECT_THAT(Forward(training, n), IsOk());
    EXPECT_THAT(Backward(training, n), IsOk());
    EXPECT_EQ(log_, want);
    EXPECT_EQ(batches_, training ? 5 : 4);
  };
  // The gradients are ready before the message of Backward.
  expect(true, 2,
         {"moments", "gather 48 uint8", "merge 3 tracked", "normalize",
          "sums and gradients", "ready", "reduce 6 float32", "dx"});
  expect(true, 0,
         {"moments", "gather 48 uint8", "merge 3 tracked", "read count",
          "sums and gradients", "ready", "reduce 6 float32"});
  expect(false, 2,
         {"running", "normalize", "sums and gradients", "ready", "dx"});
  options_.affine = false;
  expect(true, 2,
         {"moments", "gather 48 uint8", "merge 3 tracked", "normalize", "sums",
          "ready", "reduce 6 float32", "dx"});
  // Without tracking, evaluation uses the rank's own batch.
  options_.track_running_stats = false;
  expect(false, 2, {"moments", "merge 1", "normalize", "sums", "ready", "dx"});
}

TEST_F(SyncBatchNormTest, SendsNothingWithoutOtherRanks) {
  group_.ranks = 1;
  for (const bool local : {false, true}) {
    local_ = local;
    log_.clear();
    batches_ = 4;
    EXPECT_THAT(Forward(/*training=*/true), IsOk());
    EXPECT_THAT(Backward(/*training=*/true), IsOk());
    EXPECT_THAT(log_, ElementsAre("moments", "merge 1 tracked", "normalize",
                                  "sums and gradients", "ready", "dx"));
    EXPECT_EQ(batches_, 5);
  }
}

TEST_F(SyncBatchNormTest, CountsBatchesThatHaveSamples) {
  options_.momentum = std::nullopt;
  EXPECT_THAT(Forward(/*training=*/true), IsOk());
  EXPECT_EQ(batches_, 5);
  EXPECT_EQ(kernels_.merge.weight_of_batch, 1.0 / 5);
  kernels_.values = 0;
  EXPECT_THAT(Forward(/*training=*/true, /*n=*/0), IsOk());
  EXPECT_EQ(batches_, 5);
  kernels_.values = 7;  // The other ranks have these.
  EXPECT_THAT(Forward(/*training=*/true, /*n=*/0), IsOk());
  EXPECT_EQ(batches_, 6);
}

// Reading the count of all ranks waits for the device.
TEST_F(SyncBatchNormTest, AsksForTheGlobalCountWithFewerThanTwoValuesAlone) {
  const auto asks = [&](int64_t n) {
    log_.clear();
    EXPECT_THAT(Forward(/*training=*/true, n), IsOk());
    return testing::Value(log_, testing::Contains("read count"));
  };
  for (const int64_t n : {0, 1, 2, 3}) EXPECT_EQ(asks(n), n < 2) << n;
  local_ = true;
  options_.semantics = kPaddleBatchNorm;
  for (const int64_t n : {0, 1, 2, 3}) EXPECT_FALSE(asks(n)) << n;
}

TEST_F(SyncBatchNormTest, TellsTheMergeWhatTheProfileSays) {
  EXPECT_THAT(Forward(/*training=*/true), IsOk());
  EXPECT_TRUE(kernels_.merge.unbiased_running_variance);
  EXPECT_TRUE(kernels_.merge.refuses_one_value);
  EXPECT_EQ(kernels_.merge.weight_of_batch, 0.1);
  EXPECT_EQ(kernels_.merge.epsilon, 1e-5);
  options_.semantics = kPaddleBatchNorm;
  options_.momentum = 0.75;
  EXPECT_THAT(Forward(/*training=*/true), IsOk());
  EXPECT_FALSE(kernels_.merge.unbiased_running_variance);
  EXPECT_FALSE(kernels_.merge.refuses_one_value);
  EXPECT_EQ(kernels_.merge.weight_of_batch, 0.25);
}

TEST_F(SyncBatchNormTest, RefusesOneValueWhereTheProfileDoes) {
  // The single value is this rank's or another rank's, or there is no other
  // rank.
  for (const bool local : {false, true}) {
    for (const int64_t n : {1, 0}) {
      if (local && n == 0) continue;
      local_ = local;
      batches_ = 4;
      kernels_.values = 1;
      options_.semantics = kTorchBatchNorm;
      const absl::Status status = Forward(/*training=*/true, n);
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_THAT(status.message(), HasSubstr("one value per channel"));
      EXPECT_EQ(batches_, 4);
      options_.semantics = kPaddleBatchNorm;
      EXPECT_THAT(Forward(/*training=*/true, n), IsOk());
      EXPECT_EQ(batches_, 5);
    }
  }
}

TEST_F(SyncBatchNormTest, ReturnsTheGroupsError) {
  group_.failure = absl::UnavailableError("rank 2 is gone");
  EXPECT_EQ(Forward(/*training=*/true), group_.failure);
  EXPECT_EQ(batches_, 4);
  EXPECT_EQ(Backward(/*training=*/true), group_.failure);
  EXPECT_THAT(log_,
              ElementsAre("moments", "gather 48 uint8", "sums and gradients",
                          "ready", "reduce 6 float32"));
}

// The other ranks wait for a message of this rank.
TEST_F(SyncBatchNormTest, TellsTheOthersOfMemoryThatDoesNotFit) {
  short_weight_ = true;
  group_.failure = absl::UnavailableError("rank 2 is gone");
  const absl::Status forward = Forward(/*training=*/true);
  EXPECT_THAT(forward, StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("weight has 2 elements")));
  EXPECT_EQ(group_.refusal, forward);
  const absl::Status backward = Backward(/*training=*/true);
  EXPECT_THAT(backward, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("weight has 2 elements")));
  EXPECT_EQ(group_.refusal, backward);
  EXPECT_THAT(log_, ElementsAre("refuse to gather", "refuse to reduce"));
}

TEST_F(SyncBatchNormTest, TellsTheOthersOfItsDevicesError) {
  kernels_.failure = absl::ResourceExhaustedError("no memory is left");
  EXPECT_EQ(Forward(/*training=*/true), kernels_.failure);
  EXPECT_EQ(group_.refusal, kernels_.failure);
  EXPECT_EQ(Backward(/*training=*/true), kernels_.failure);
  EXPECT_EQ(group_.refusal, kernels_.failure);
  EXPECT_THAT(log_, ElementsAre("moments", "refuse to gather",
                                "sums and gradients", "refuse to reduce"));
}

TEST_F(SyncBatchNormTest, TellsNobodyWhereNobodyWaits) {
  short_weight_ = true;
  EXPECT_TRUE(absl::IsInvalidArgument(Forward(/*training=*/false)));
  EXPECT_TRUE(absl::IsInvalidArgument(Backward(/*training=*/false)));
  options_.track_running_stats = false;
  EXPECT_TRUE(absl::IsInvalidArgument(Forward(/*training=*/false)));
  local_ = true;
  EXPECT_TRUE(absl::IsInvalidArgument(Forward(/*training=*/true)));
  EXPECT_TRUE(absl::IsInvalidArgument(Backward(/*training=*/true)));
  EXPECT_THAT(log_, ElementsAre());
}

TEST_F(SyncBatchNormTest, RefusesOptionsThatDoNotFit) {
  options_.channels = 0;
  for (const bool local : {false, true}) {
    local_ = local;
    EXPECT_TRUE(absl::IsInvalidArgument(Forward(/*training=*/true)));
  }
  EXPECT_THAT(log_, ElementsAre());
}

}  // namespace
}  // namespace lockstep
