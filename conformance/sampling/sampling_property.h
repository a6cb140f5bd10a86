// What the suite asks of samplers: the names that a failure may have.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_PROPERTY_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_PROPERTY_H_

#include <string_view>

namespace lockstep {

// Of whole epochs and of states, in the order in which they are asked. A bug
// must be there for each: faulty_sampler_test, //conformance/mutants.
inline constexpr const char* kEpochProperties[] = {
    "Guards",      "Batches", "Lengths",      "Disjointness", "Coverage",  //
    "Padding",     "Deal",    "EpochsDiffer", "SeedsDiffer",  "Order",     //
    "RepeatedDraw"};
inline constexpr const char* kResumeProperties[] = {
    "States", "Resume", "Rescale", "NextEpoch", "BadStates"};

constexpr bool IsSamplingProperty(std::string_view name) {
  for (const std::string_view known : kEpochProperties) {
    if (known == name) return true;
  }
  for (const std::string_view known : kResumeProperties) {
    if (known == name) return true;
  }
  return false;
}

// Never defined: what the compiler then names in its error.
void NameItInASamplingPropertyTable();

// The name of one. A literal that is in neither table does not compile, so that
// no check can fail, through Breaks(), under a name that no bug is asked of.
class SamplingProperty {
 public:
  // Not explicit: Breaks("Guards", ...).
  consteval SamplingProperty(const char* name) : name_(name) {
    if (!IsSamplingProperty(name)) NameItInASamplingPropertyTable();
  }

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_PROPERTY_H_
