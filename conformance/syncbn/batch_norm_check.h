// What the suite asks of batch norm: the names that a failure may have.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECK_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECK_H_

#include <string_view>

namespace lockstep {

// In the order in which they are asked. A bug must be there for each:
// faulty_batch_norm_test, //conformance/mutants.
inline constexpr const char* kBatchNormChecks[] = {
    "Status",        "Untouched",        "Ready",
    "Output",        "RunningMean",      "RunningVariance",
    "BatchCount",    "BiasGradient",     "WeightGradient",
    "InputGradient", "ResidualGradient", "RanksAgree",
    "SameBits"};

constexpr bool IsBatchNormCheck(std::string_view name) {
  for (const std::string_view known : kBatchNormChecks) {
    if (known == name) return true;
  }
  return false;
}

// Never defined: what the compiler then names in its error.
void NameItInBatchNormChecks();

// The name of one. A literal that is not in the table does not compile, so that
// nothing can fail under a name that no bug is asked of.
class BatchNormCheck {
 public:
  // Not explicit: a row is {"Output", CheckOutput}.
  consteval BatchNormCheck(const char* name) : name_(name) {
    if (!IsBatchNormCheck(name)) NameItInBatchNormChecks();
  }

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_BATCH_NORM_CHECK_H_
