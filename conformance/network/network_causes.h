// The causes of a wrong step of a network.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "models/model.h"

namespace lockstep::conformance {

// The largest error of an explanation, relative to the difference that it
// explains.
inline constexpr double kFit = 0.05;

// Returns the Euclidean distance of two vectors of one size.
double Distance(std::span<const double> a, std::span<const double> b);

// Returns whether bfloat16 has all these values.
bool IsBFloat16(std::span<const float> values);

// Returns the first difference of two ranks' moments, for example "gradients:
// 0.weight". Empty if there is none.
std::string DifferenceOfRanks(const TestedNetwork& tested, const RankMoment& a,
                              const RankMoment& b);

// Returns "; ..." for the cause of a difference between ranks 0 and `rank` at
// that moment, or "". The causes: some ranks agree and not all; the running
// statistics of one batch norm alone differ; only the gradients of every batch
// norm, or of one layer, differ.
std::string CauseOfDifference(const TestedNetwork& tested,
                              const NetworkTrace& trace, size_t rank,
                              size_t moment);

// The causes of one wrong step, beside the reference at the run's own
// parameters. Borrows the constructor's arguments.
class StepCauses {
 public:
  StepCauses(const NetworkRun& run, const NetworkTrace& trace, int step,
             const NetworkStep& want,
             BatchStatistics statistics = BatchStatistics::kGlobal)
      : run_(run),
        step_(step),
        want_(want),
        statistics_(statistics),
        in_(InputOf(run, trace, step, statistics)) {}

  // Returns "; ..." for the cause of a wrong gradient, or "". `spec` is the
  // first wrong tensor. The causes:
  //
  //   - the tensor is zero, or a head of an attention has no gradient;
  //   - all gradients are those of local batch norm, or of SyncBatchNorm
  //     where local batch norm is expected;
  //   - all are those of a mean of means, or of masks that each rank
  //     numbers for itself;
  //   - all are those of attention without its scale, of bottlenecks with their
  //     stride in another convolution, or of a backward pass that forgets a
  //     shortcut;
  //   - the tensor has bfloat16's bits, or is a multiple of the right one.
  std::string OfGradient(const ParameterSpec& spec, std::span<const float> got);

  // Returns "; ..." for the cause of a rank's wrong running statistic, or "".
  // The causes: it did not change, or has bfloat16's bits; it is that of the
  // rank's own batch, or, if this is expected, that of the global batch or of
  // another rank's share; the batch has another weight. want: all statistics
  // that the rank should have.
  std::string OfBuffer(const ParameterSpec& spec, int rank,
                       std::span<const float> before,
                       std::span<const float> after,
                       std::span<const double> want);

 private:
  // Returns the step with the batch statistics that are not expected.
  const NetworkStep& Other();
  std::string OfOtherStatistics(const ParameterSpec& spec, int rank,
                                std::span<const float> after,
                                std::span<const double> want);

  // Whether `got` is much nearer to `other` than `other` is to the right
  // gradient.
  bool Fits(std::span<const double> got, std::span<const double> other) const;
  bool IsMeanOfMeans(const std::vector<double>& gradient) const;
  bool IsOfLocalMasks(const std::vector<double>& gradient) const;
  // Returns the cause if attention, a stride or a shortcut is wrong.
  std::string OfArchitecture(const std::vector<double>& gradient) const;
  std::string OfAttention(const std::vector<double>& gradient) const;
  bool IsOfStrideInFirst(const std::vector<double>& gradient) const;
  std::string OfShortcuts(const std::vector<double>& gradient) const;

  const NetworkRun& run_;
  const int step_;
  const NetworkStep& want_;
  const BatchStatistics statistics_;
  const StepInput in_;
  std::optional<NetworkStep> other_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_
