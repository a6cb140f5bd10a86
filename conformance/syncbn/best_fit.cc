// Measures numbers against mistakes in units of their bounds.
#include "conformance/syncbn/best_fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/syncbn/batch_norm_reference.h"

namespace lockstep {

namespace {

constexpr double kSlack = 4;

bool IsRight(double value, const Bounded& want, size_t i) {
  return std::fabs(value - want.value[i]) <= want.bound[i];
}

// How many bounds that is, at most kSlack, which NaN is.
double Times(double off, double bound) {
  const double times = off == 0 ? 0 : std::fabs(off) / bound;
  return times < kSlack ? times : kSlack;
}

}  // namespace

std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Mistake>& mistakes) {
  double least = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    least = std::max(least, Times(got[i] - want.value[i], want.bound[i]));
  }
  std::string name;
  for (const Mistake& mistake : mistakes) {
    double most = 0;
    bool is_rejected = false;
    for (size_t i = 0; i < got.size() && most < least; ++i) {
      const auto c =
          static_cast<size_t>(static_cast<int64_t>(i) / hw % channels);
      const double value = mistake.value(i, c);
      const double stretch =
          mistake.stretch == nullptr ? 1 : mistake.stretch(c);
      const double bound =
          stretch * want.bound[i] + precision.output_unit * std::fabs(value);
      is_rejected = is_rejected || !IsRight(value, want, i);
      most = std::max(most, Times(got[i] - value, bound));
    }
    if (is_rejected && most < least) {
      least = most;
      name = mistake.name;
    }
  }
  return name.empty() ? "" : absl::StrCat(", as if ", name);
}

std::string FirstChannelsOnly(std::span<const double> got, const Bounded& want,
                              int64_t hw, int64_t channels, int64_t channel) {
  constexpr int64_t kChannels = 64;
  if (channel < kChannels) return "";
  // Of each channel: right numbers less wrong ones.
  std::vector<int64_t> more_right(static_cast<size_t>(channels));
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t c = static_cast<int64_t>(i) / hw % channels;
    const bool is_right = IsRight(got[i], want, i);
    if (c < kChannels && !is_right) return "";
    more_right[static_cast<size_t>(c)] += is_right ? 1 : -1;
  }
  const bool are_wrong =
      std::all_of(more_right.begin() + kChannels, more_right.end(),
                  [](int64_t more) { return more < 0; });
  return are_wrong ? ", as if only the first 64 channels were computed" : "";
}

std::string NotWritten(std::span<const double> got, const Bounded& want,
                       const std::vector<bool>& unwritten) {
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (IsRight(got[i], want, i)) continue;
    if (!unwritten[i]) return "";
    ++wrong;
  }
  return absl::StrCat(", as if it had not been written, ", wrong, " of ",
                      got.size());
}

}  // namespace lockstep
