// What a wrong step of the network looks like: the mistakes that would give it.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "models/parameters.h"

namespace lockstep {

inline constexpr double kNetworkMomentum = 0.1;

// What of two ranks' moments differs first, "gradients: 0.weight"; empty if
// nothing does.
std::string DifferenceOfRanks(const RankMoment& a, const RankMoment& b);

// Ranks 0 and `rank` differ at that moment: "; ..." or "". Some ranks agree and
// not all; the running statistics of one batch norm alone differ; the gradients
// of every batch norm and nothing else.
std::string CauseOfDifference(const NetworkTrace& trace, size_t rank,
                              size_t moment);

// Causes in one step, beside the reference at the run's own parameters. Borrows
// all it is given.
class StepCauses {
 public:
  StepCauses(const NetworkRun& run, const NetworkTrace& trace, int step,
             const NetworkStep& want)
      : run_(run), trace_(trace), step_(step), want_(want) {}

  // A wrong gradient, of which this tensor is the first: "; ..." or "". It is
  // that of local batch norm; of a mean of means; a multiple.
  std::string OfGradient(const ParameterSpec& spec, std::span<const float> got);

  // A rank's wrong running statistic: "; ..." or "". It is what it was; the
  // batch has another weight; it is that of the rank's own batch. want: all of
  // them, as the rank should have them.
  std::string OfBuffer(const ParameterSpec& spec, int rank,
                       std::span<const float> before,
                       std::span<const float> after,
                       std::span<const double> want);

 private:
  const LocalStep& Local();
  bool IsMeanOfMeans(const std::vector<double>& gradient) const;

  const NetworkRun& run_;
  const NetworkTrace& trace_;
  const int step_;
  const NetworkStep& want_;
  std::optional<LocalStep> local_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_CAUSES_H_
