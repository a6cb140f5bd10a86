// What is right passes; every way to be wrong is counted.
#include "benchmarks/syncbn_check.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/uniform.h"
#include "collectives/algorithms/half.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/group_options.h"
#include "collectives/host/run_on_threads.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr int64_t kBatch = 3, kPixels = 7, kChannels = 5;

int64_t ChannelOf(Layout layout, int64_t i) {
  return layout == Layout::kNhwc ? i % kChannels : i / kPixels % kChannels;
}

float Narrow(float x, float) { return x; }
Float16 Narrow(float x, Float16) { return ToFloat16(x); }
BFloat16 Narrow(float x, BFloat16) { return ToBFloat16(x); }
double Wide(float x) { return x; }
double Wide(Float16 x) { return ToFloat(x); }
double Wide(BFloat16 x) { return ToFloat(x); }

// Inputs, and the outputs by the formulas of batch norm, of `ranks` ranks that
// lie one after the other.
template <typename T>
struct Example {
  Example(Layout layout, int ranks) : layout(layout), ranks(ranks) {
    const size_t size = static_cast<size_t>(ranks * kPart);
    for (size_t i = 0; i < size; ++i) {
      const auto at = static_cast<int64_t>(i);
      const double shift = 0.25 * static_cast<double>(at / kPart);
      x.push_back(Narrow(static_cast<float>(2 + shift + Uniform(1, at)), T()));
      dy.push_back(Narrow(static_cast<float>(0.1 + Uniform(2, at)), T()));
    }
    for (int64_t c = 0; c < kChannels; ++c) {
      weight.push_back(0.5f + static_cast<float>(c));
      bias.push_back(1.0f - static_cast<float>(c));
    }
    y = dx = x;
    dweight.assign(static_cast<size_t>(ranks) * kChannels, 0);
    dbias = dweight;
    for (int64_t c = 0; c < kChannels; ++c) Compute(c);
  }

  void Compute(int64_t c) {
    std::vector<size_t> own;
    for (size_t i = 0; i < x.size(); ++i) {
      if (ChannelOf(layout, static_cast<int64_t>(i) % kPart) == c) {
        own.push_back(i);
      }
    }
    const auto n = static_cast<double>(own.size());
    double mean = 0, variance = 0, sum = 0, product = 0;
    for (const size_t i : own) mean += Wide(x[i]) / n;
    for (const size_t i : own) variance += std::pow(Wide(x[i]) - mean, 2) / n;
    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    const auto at = static_cast<size_t>(c);
    for (const size_t i : own) {
      const double normalised = (Wide(x[i]) - mean) * inverse;
      const size_t to = i / kPart * kChannels + at;
      dbias[to] += static_cast<float>(Wide(dy[i]));
      dweight[to] += static_cast<float>(Wide(dy[i]) * normalised);
      sum += Wide(dy[i]);
      product += Wide(dy[i]) * normalised;
    }
    for (const size_t i : own) {
      const double normalised = (Wide(x[i]) - mean) * inverse;
      y[i] =
          Narrow(static_cast<float>(normalised * weight[at] + bias[at]), T());
      dx[i] = Narrow(static_cast<float>(
                         weight[at] * inverse *
                         (Wide(dy[i]) - sum / n - normalised * product / n)),
                     T());
    }
  }

  LayerInputs Inputs(int rank) const {
    return {.shape = {kBatch, kChannels, kPixels, layout},
            .x = Part(x, rank),
            .dy = Part(dy, rank),
            .weight = weight,
            .bias = bias};
  }
  LayerOutputs Outputs(int rank) const {
    const size_t at = static_cast<size_t>(rank) * kChannels;
    return {.y = Part(y, rank),
            .dx = Part(dx, rank),
            .dweight = std::span(dweight).subspan(at, kChannels),
            .dbias = std::span(dbias).subspan(at, kChannels)};
  }
  static ConstBuffer Part(const std::vector<T>& all, int rank) {
    return ConstBuffer(all).Part(rank * kPart, kPart);
  }

  static constexpr int64_t kPart = kBatch * kPixels * kChannels;
  const Layout layout;
  const int ranks;
  std::vector<T> x, dy, y, dx;
  std::vector<float> weight, bias, dweight, dbias;
};

template <typename T>
int64_t WrongAlone(const Example<T>& example, int rank = 0) {
  const absl::StatusOr<LayerReference> reference =
      LayerReference::Create(example.Inputs(rank), kEpsilon, nullptr);
  EXPECT_THAT(reference, IsOk());
  return reference->CountWrong(example.Inputs(rank), example.Outputs(rank));
}

template <typename T>
class LayerReferenceTest : public testing::Test {};
using Types = testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(LayerReferenceTest, Types);

TYPED_TEST(LayerReferenceTest, TakesWhatIsRight) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    EXPECT_EQ(WrongAlone(Example<TypeParam>(layout, 1)), 0) << Name(layout);
  }
}

TYPED_TEST(LayerReferenceTest, CountsEachElementThatIsWrong) {
  const TypeParam nan =
      Narrow(std::numeric_limits<float>::quiet_NaN(), TypeParam());
  Example<TypeParam> example(Layout::kNhwc, 1);
  example.y[0] = example.y[1] = nan;
  example.y[2] =
      Narrow(static_cast<float>(Wide(example.y[2]) * 1.05 + 0.05), TypeParam());
  example.dx[10] = nan;
  example.dx[11] =
      Narrow(static_cast<float>(Wide(example.dx[11]) + 0.05), TypeParam());
  example.dweight[0] += 1;
  example.dbias[4] += 1;
  example.dbias[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(WrongAlone(example), 8);
}

// The whole batch's statistics are not those of a part of it, nor the one
// layout's those of the other.
TYPED_TEST(LayerReferenceTest, CountsTheStatisticsOfAnotherBatch) {
  const Example<TypeParam> both(Layout::kNhwc, 2);
  EXPECT_GT(WrongAlone(both), 2 * Example<TypeParam>::kPart * 9 / 10);
  Example<TypeParam> confused(Layout::kNhwc, 1);
  const Example<TypeParam> other(Layout::kNchw, 1);
  confused.y = other.y;
  EXPECT_GT(WrongAlone(confused), Example<TypeParam>::kPart / 2);
}

TYPED_TEST(LayerReferenceTest, TakesTheBatchesOfAllRanksTogether) {
  const Example<TypeParam> example(Layout::kNchw, 3);
  const absl::Status status =
      RunOnThreads(3, GroupOptions(), [&](Communicator& group) -> absl::Status {
        const LayerInputs inputs = example.Inputs(group.rank());
        LOCKSTEP_ASSIGN_OR_RETURN(
            const LayerReference reference,
            LayerReference::Create(inputs, kEpsilon, &group));
        const int64_t wrong =
            reference.CountWrong(inputs, example.Outputs(group.rank()));
        return wrong == 0 ? absl::OkStatus()
                          : absl::DataLossError(absl::StrCat(wrong, " wrong"));
      });
  EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace lockstep
