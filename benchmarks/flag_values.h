// Values of flags that more than one benchmark has.
#ifndef LOCKSTEP_BENCHMARKS_FLAG_VALUES_H_
#define LOCKSTEP_BENCHMARKS_FLAG_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {

// Names that a flag takes, and what each stands for.
template <typename T>
using NamedValues = std::vector<std::pair<const char*, T>>;

// Errors: kInvalidArgument, beginning with the flag and listing the names.
template <typename T>
absl::StatusOr<T> ParseName(absl::string_view flag, absl::string_view text,
                            const NamedValues<T>& all) {
  std::string known;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": '", text, "' is not one of ", known));
}

// Every item of a comma-separated list once, in the order given.
template <typename T>
absl::StatusOr<std::vector<T>> ParseNames(absl::string_view flag,
                                          absl::string_view text,
                                          const NamedValues<T>& all) {
  std::vector<T> items;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(const T item, ParseName(flag, name, all));
    if (std::find(items.begin(), items.end(), item) == items.end()) {
      items.push_back(item);
    }
  }
  return items;
}

// Error: kInvalidArgument unless low <= value <= high.
inline absl::Status CheckRange(absl::string_view flag, int64_t value,
                               int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not between ", low, " and ", high));
}

// Error: kInvalidArgument unless 0 < seconds < kMostSeconds; NaN is neither.
inline constexpr double kMostSeconds = 1e6;
inline absl::Status CheckSeconds(absl::string_view flag, double seconds) {
  if (seconds > 0 && seconds < kMostSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", seconds, " is not above 0 and below ", kMostSeconds));
}

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_FLAG_VALUES_H_
