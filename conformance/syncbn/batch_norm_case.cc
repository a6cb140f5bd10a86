// Enumerates the suite's layers and batches, and names them.
#include "conformance/syncbn/batch_norm_case.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/testing/numbers.h"

namespace lockstep::conformance {
namespace {

struct Size {
  int64_t channels;
  int64_t large_hw;
  int64_t large_hw_far;
};
constexpr Size kSizes[] = {{1, 1031, 15}, {3, 529, 15}, {63, 49, 15},
                           {64, 49, 15},  {65, 49, 15}, {2048, 4, 4}};

// The names stand in the order of the enumerators.
constexpr const char* kFusedNames[] = {
    "", " relu", " residual", " residual+relu", " residual+relu in place"};
constexpr const char* kTrackingNames[] = {"momentum", "cumulative",
                                          "not tracked"};
constexpr const char* kBatchesNames[] = {"Even",      "Uneven",   "OneSample",
                                         "EmptyRank", "OneInAll", "Large"};

bool HasFarOffset(DataType type, const Size& size, int64_t hw) {
  const bool wide = type == DataType::kFloat32 || type == DataType::kFloat64;
  return wide || (hw > 4 && hw == size.large_hw_far);
}

}  // namespace

const char* Name(RankBatches batches) {
  return kBatchesNames[static_cast<size_t>(batches)];
}

bool HasRelu(Fused fused) {
  return fused != Fused::kNothing && fused != Fused::kResidual;
}

bool HasResidual(Fused fused) {
  return fused != Fused::kNothing && fused != Fused::kRelu;
}

std::string ToString(const BatchNormProblem& problem) {
  return absl::StrCat("P=", problem.world_size, " ", Name(problem.type), " ",
                      Name(problem.batches), " [.., ", problem.channels, ", ",
                      problem.hw, "]", problem.affine ? " affine" : "",
                      kFusedNames[static_cast<size_t>(problem.fused)],
                      problem.offsets == Offsets::kFar ? " far" : "");
}

std::string ToString(const BatchNormVariant& variant) {
  return absl::StrCat(Name(variant.layout), ", ",
                      std::string(variant.semantics.name), ", ",
                      kTrackingNames[static_cast<size_t>(variant.tracking)]);
}

std::vector<int64_t> BatchSizes(const BatchNormProblem& problem, int step) {
  constexpr int64_t kUneven[] = {3, 1, 5, 2, 4, 1, 3, 5};
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < problem.world_size; ++rank) {
    const int turn = (rank + step) % problem.world_size;
    switch (problem.batches) {
      case RankBatches::kEven:
        sizes.push_back(3);
        break;
      case RankBatches::kOneSample:
        sizes.push_back(1);
        break;
      case RankBatches::kUneven:
        sizes.push_back(kUneven[turn]);
        break;
      case RankBatches::kEmptyRank:
        sizes.push_back(turn == problem.world_size / 2 ? 0 : kUneven[turn]);
        break;
      case RankBatches::kOneSampleInTotal:
        sizes.push_back(turn == problem.world_size / 2 ? 1 : 0);
        break;
      case RankBatches::kLarge:
        sizes.push_back(turn == 0 ? 22 : 6);
        break;
    }
  }
  return sizes;
}

BatchNormOptions OptionsOf(const BatchNormProblem& problem,
                           const BatchNormVariant& variant) {
  BatchNormOptions options;
  options.channels = problem.channels;
  options.semantics = variant.semantics;
  options.epsilon = problem.affine ? 0.05 : 1e-5;
  options.affine = problem.affine;
  options.track_running_stats = variant.tracking != Tracking::kNone;
  const bool of_batch =
      variant.semantics.momentum_of == BatchNormSemantics::MomentumOf::kBatch;
  options.momentum = variant.tracking == Tracking::kCumulative
                         ? std::nullopt
                         : std::optional<double>(of_batch ? 0.3 : 0.8);
  return options;
}

std::vector<BatchNormProblem> ProblemsOf(int world_size, DataType type,
                                         RankBatches batches) {
  std::vector<BatchNormProblem> problems;
  for (const Size& size : kSizes) {
    for (const bool affine : {true, false}) {
      for (const Offsets offsets : {Offsets::kOrdinary, Offsets::kFar}) {
        const bool far = offsets == Offsets::kFar;
        const int64_t large = far ? size.large_hw_far : size.large_hw;
        for (const int64_t hw : {int64_t{1}, large}) {
          if (far && !HasFarOffset(type, size, hw)) continue;
          problems.push_back({.world_size = world_size,
                              .type = type,
                              .batches = batches,
                              .offsets = offsets,
                              .channels = size.channels,
                              .hw = hw,
                              .affine = affine});
        }
      }
    }
  }
  return problems;
}

std::vector<BatchNormProblem> FusedProblemsOf(int world_size, DataType type,
                                              RankBatches batches) {
  std::vector<BatchNormProblem> problems;
  for (const Fused fused : {Fused::kRelu, Fused::kResidual,
                            Fused::kResidualRelu, Fused::kInPlace}) {
    for (BatchNormProblem problem : ProblemsOf(world_size, type, batches)) {
      if (problem.offsets == Offsets::kFar) continue;
      if (problem.channels != 3 && problem.channels != 64) continue;
      problem.fused = fused;
      problems.push_back(problem);
    }
  }
  return problems;
}

std::vector<BatchNormProblem> OneValueProblems(int world_size) {
  std::vector<BatchNormProblem> problems;
  for (const int64_t channels : {1, 65}) {
    problems.push_back({.world_size = world_size,
                        .batches = RankBatches::kOneSampleInTotal,
                        .channels = channels});
  }
  return problems;
}

std::vector<BatchNormProblem> LargeProblems() {
  const auto large = [](DataType type, int64_t channels, int64_t hw,
                        Fused fused) {
    return BatchNormProblem{.world_size = 2,
                            .type = type,
                            .batches = RankBatches::kLarge,
                            .channels = channels,
                            .hw = hw,
                            .fused = fused};
  };
  return {// With channels first, the kernels cut only within a channel.
          large(DataType::kFloat64, 1, 12304, Fused::kNothing),
          large(DataType::kFloat32, 64, 784, Fused::kResidualRelu),
          large(DataType::kBFloat16, 64, 784, Fused::kNothing)};
}

std::vector<MatrixPart> PartsOf(std::span<const int> world_sizes,
                                std::span<const DataType> types) {
  std::vector<MatrixPart> parts;
  for (const int world_size : world_sizes) {
    for (const DataType type : types) {
      for (const RankBatches batches : kAllBatches) {
        parts.push_back({world_size, type, batches});
      }
    }
  }
  return parts;
}

std::string ToString(const MatrixPart& part) {
  return absl::StrCat("P", part.world_size, "_", Name(part.type), "_",
                      Name(part.batches));
}

bool IsSpiked(const BatchNormProblem& problem) {
  constexpr int64_t kMostValues = 10000;
  if (problem.batches == RankBatches::kLarge || problem.hw < 256) return false;
  if (problem.type == DataType::kFloat64) return true;
  int64_t values = 0;
  for (const int64_t n : BatchSizes(problem, 0)) values += n * problem.hw;
  return values <= kMostValues;
}

std::vector<Layout> LayoutsOf(int64_t channels) {
  std::vector<Layout> layouts = {Layout::kNchw, Layout::kNhwc};
  if (channels % kChannelBlock == 0) layouts.push_back(Layout::kNchw16c);
  return layouts;
}

std::vector<BatchNormVariant> AllVariants(const BatchNormProblem& problem) {
  std::vector<BatchNormVariant> variants;
  for (const Layout layout : LayoutsOf(problem.channels)) {
    for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
      for (const Tracking tracking :
           {Tracking::kMomentum, Tracking::kCumulative, Tracking::kNone}) {
        variants.push_back({layout, tracking, semantics});
      }
    }
  }
  return variants;
}

std::vector<BatchNormVariant> LayoutVariants(const BatchNormProblem& problem) {
  std::vector<BatchNormVariant> variants;
  for (const Layout layout : LayoutsOf(problem.channels)) {
    variants.push_back({.layout = layout});
  }
  return variants;
}

std::string Encode(DataType type, std::span<const double> values) {
  std::string bytes(values.size() * static_cast<size_t>(SizeOf(type)), '\0');
  const Buffer buffer(bytes.data(), std::ssize(values), type);
  for (size_t i = 0; i < values.size(); ++i) {
    SetNumber(buffer, static_cast<int64_t>(i), values[i]);
  }
  return bytes;
}

std::vector<double> Decode(DataType type, absl::string_view bytes) {
  std::vector<double> values(bytes.size() / static_cast<size_t>(SizeOf(type)));
  const ConstBuffer buffer(bytes.data(), std::ssize(values), type);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = GetNumber(buffer, static_cast<int64_t>(i));
  }
  return values;
}

uint64_t Hash(uint64_t key) {
  key = (key ^ (key >> 31)) * 0x7fb5d329728ea185;
  key = (key ^ (key >> 27)) * 0x81dadef4bc2dd44d;
  return key ^ (key >> 33);
}

double Uniform(uint64_t key) {
  return static_cast<double>(static_cast<int64_t>(Hash(key))) * 0x1p-63;
}

}  // namespace lockstep::conformance
