// Names of checks that the compiler looks up in their folder's table.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_NAME_H_
#define LOCKSTEP_CONFORMANCE_CHECK_NAME_H_

#include <span>
#include <string_view>

namespace lockstep {

constexpr bool IsNameIn(std::span<const char* const> table,
                        std::string_view name) {
  for (const std::string_view known : table) {
    if (known == name) return true;
  }
  return false;
}

// Never defined: what the compiler then names in its error.
void NameItInTheTableOfChecks();

// A name in `kTable`, an array of them. Any other literal does not compile. So
// no check that takes its name as a NameIn can fail under a name that
// //conformance/mutants asks no mutant of.
template <const auto& kTable>
class NameIn {
 public:
  // Not explicit: Breaks("Guards", ...).
  consteval NameIn(const char* name) : name_(name) {
    if (!IsNameIn(kTable, name)) NameItInTheTableOfChecks();
  }

  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_NAME_H_
