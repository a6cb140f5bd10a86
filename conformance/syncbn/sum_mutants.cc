// Mutants of how the statistics of a rank's batch are added up.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"
#include "conformance/mutant.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_mutants.h"
#include "conformance/syncbn/plain_kernels.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

constexpr int64_t kFirstChannels = 64;

// Enough for a wrong statistic to be off by more than chance allows.
bool HasManyValues(const BatchNormProblem& problem) {
  return ValuesOf(problem, 0) >= 4;
}

void SquareInFloat(const ActivationShape& shape, ConstBuffer x,
                   const RecordAccess& record) {
  const auto count = static_cast<float>(shape.values_per_channel());
  for (int64_t c = 0; shape.n > 0 && c < shape.c; ++c) {
    float sum = 0;
    float squares = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        const auto value =
            static_cast<float>(GetNumber(x, PlaceOf(shape, n, c, i)));
        sum += value;
        squares += value * value;
      }
    }
    const float mean = sum / count;
    const float variance = std::max(0.0F, squares / count - mean * mean);
    SetNumber(record.second, c, variance * count);
  }
}

// E[x^2] - E[x]^2, with sums as narrow as x.
void SquareInOwnType(const ActivationShape& shape, ConstBuffer x,
                     const RecordAccess& record) {
  std::array<std::byte, sizeof(double)> memory;
  const Buffer narrow(memory.data(), 1, x.type);
  const auto rounded = [&narrow](double value) {
    SetNumber(narrow, 0, value);
    return GetNumber(narrow, 0);
  };
  const auto count = static_cast<double>(shape.values_per_channel());
  for (int64_t c = 0; shape.n > 0 && c < shape.c; ++c) {
    double sum = 0;
    double squares = 0;
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        const double value = GetNumber(x, PlaceOf(shape, n, c, i));
        sum = rounded(sum + value);
        squares = rounded(squares + rounded(value * value));
      }
    }
    const double mean = sum / count;
    SetNumber(record.second, c, std::max(0.0, squares - mean * mean * count));
  }
}

// Mean and M2 of the values that `takes` wants, divided by `count`, which may
// be of more.
template <typename Takes>
void SetMoments(const ActivationShape& shape, ConstBuffer x, double count,
                const RecordAccess& record, Takes takes) {
  const auto for_values = [&](int64_t c, auto fn) {
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t i = 0; i < shape.hw; ++i) {
        if (takes(n, i)) fn(GetNumber(x, PlaceOf(shape, n, c, i)));
      }
    }
  };
  for (int64_t c = 0; shape.n > 0 && c < shape.c; ++c) {
    double mean = 0;
    for_values(c, [&](double value) { mean += value / count; });
    double m2 = 0;
    for_values(c, [&](double value) { m2 += (value - mean) * (value - mean); });
    SetNumber(record.mean, c, mean);
    SetNumber(record.second, c, m2);
  }
}

void SkipTheLastOfRows(const ActivationShape& shape, ConstBuffer x,
                       const RecordAccess& record) {
  SetMoments(shape, x, static_cast<double>(shape.values_per_channel()), record,
             [&](int64_t, int64_t i) { return i < shape.hw - 1; });
}

void SkipTheLastOfBatch(const ActivationShape& shape, ConstBuffer x,
                        const RecordAccess& record) {
  SetMoments(shape, x, static_cast<double>(shape.values_per_channel()), record,
             [&](int64_t n, int64_t i) {
               return n < shape.n - 1 || i < shape.hw - 1;
             });
}

// The first half of the samples stands for both.
void TakeOneSegment(const ActivationShape& shape, ConstBuffer x,
                    const RecordAccess& record) {
  const int64_t half = shape.n / 2;
  SetMoments(shape, x, static_cast<double>(half * shape.hw), record,
             [half](int64_t n, int64_t) { return n < half; });
  const double times = static_cast<double>(shape.n) / static_cast<double>(half);
  for (int64_t c = 0; c < shape.c; ++c) {
    SetNumber(record.second, c, GetNumber(record.second, c) * times);
  }
}

void LeaveChannelsOut(const ActivationShape& shape, ConstBuffer,
                      const RecordAccess& record) {
  for (int64_t c = kFirstChannels; c < shape.c; ++c) {
    SetNumber(record.mean, c, 0);
    SetNumber(record.second, c, 0);
  }
}

// Of so many channels that in one of them chance does not hide the mutant.
std::vector<BatchNormProblem> FarProblems(
    std::initializer_list<DataType> types) {
  std::vector<BatchNormProblem> far;
  for (const DataType type : types) {
    for (const RankBatches batches : kAllBatches) {
      for (const int world_size : {1, 3}) {
        for (const auto& problem : ProblemsOf(world_size, type, batches)) {
          if (problem.offsets == Offsets::kFar && problem.channels == 65 &&
              problem.hw > 1) {
            far.push_back(problem);
          }
        }
      }
    }
  }
  return far;
}

bool ShowsIfMany(const BatchNormProblem& problem, const BatchNormVariant&) {
  return HasManyValues(problem);
}

bool ShowsTheLast(const BatchNormProblem& problem, const BatchNormVariant&) {
  return IsSpiked(problem) && HasManyValues(problem);
}

std::vector<Mutant> SquareMutants() {
  return {
      Planted(
          {"SquaresInFloat",
           "the variance is E[x^2] - E[x]^2, in float32",
           {"Output"},
           "as if the variance were E[x^2] - E[x]^2, in float32"},
          {.shows = ShowsIfMany,
           .problems =
               [] {
                 // Not bfloat16: its squares have 16 bits, so that float32 adds
                 // 256 of them exactly, and nothing is wrong.
                 return FarProblems({DataType::kFloat32, DataType::kFloat16});
               },
           .moments = SquareInFloat}),
      Planted({"SquaresInOwnType",
               "the variance is E[x^2] - E[x]^2, in the type of x",
               {"Output"},
               "as if the variance were E[x^2] - E[x]^2, in the type of x"},
              {.shows = ShowsIfMany,
               .problems = [] { return FarProblems({DataType::kBFloat16}); },
               .moments = SquareInOwnType}),
  };
}

std::vector<Mutant> LostValueMutants() {
  return {
      Planted(
          {"StopsAtChannel64",
           "the statistics of channels from 64 on are not computed",
           {"Output"},
           "as if only the first 64 channels were computed"},
          {.shows =
               [](const BatchNormProblem& problem, const BatchNormVariant&) {
                 return problem.channels > kFirstChannels &&
                        HasManyValues(problem);
               },
           .moments = LeaveChannelsOut}),
      Planted({"SkipsTheLastValue",
               "the statistics leave out the last value of each row",
               {"Output"},
               "as if the statistics lacked the last value of each row"},
              {.shows = ShowsTheLast, .moments = SkipTheLastOfRows}),
      Planted({"SkipsTheLastOfTheBatch",
               "the statistics leave out the last value of the batch",
               {"Output"},
               "of every rank"},
              {.shows = ShowsTheLast, .moments = SkipTheLastOfBatch}),
      Planted({"TakesOneSegment",
               "segments are merged as if all were like the first",
               {"Output"},
               "as if the first half of each rank's samples stood for all"},
              {.shows =
                   [](const BatchNormProblem&, const BatchNormVariant& v) {
                     return v.tracking == Tracking::kMomentum &&
                            v.semantics.name == "torch";
                   },
               .problems = LargeProblems,
               .moments = TakeOneSegment}),
  };
}

}  // namespace

std::vector<Mutant> SumMutants() {
  std::vector<Mutant> all = SquareMutants();
  for (const Mutant& mutant : LostValueMutants()) all.push_back(mutant);
  return all;
}

}  // namespace lockstep
