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

std::string BestFit(std::span<const double> got, const Bounded& want,
                    const Precision& precision, int64_t hw, int64_t channels,
                    const std::vector<Mistake>& mistakes) {
  constexpr double kSlack = 4;
  // Of a bound: a mistake that gives the right number is none here.
  constexpr double kRight = 1e-6;
  double least = kSlack;
  std::string name;
  for (const Mistake& mistake : mistakes) {
    double most = 0;
    bool differs = false;
    for (size_t i = 0; i < got.size() && most < least; ++i) {
      const auto c =
          static_cast<size_t>(static_cast<int64_t>(i) / hw % channels);
      const double value = mistake.value(i, c);
      const double bound =
          want.bound[i] + precision.output_unit * std::fabs(value);
      differs =
          differs || std::fabs(value - want.value[i]) > kRight * want.bound[i];
      const double off = std::fabs(got[i] - value);
      const double times = off == 0 ? 0 : off / bound;
      most = times < kSlack ? std::max(most, times) : kSlack;
    }
    if (differs && most < least) {
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
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t c = static_cast<int64_t>(i) / hw % channels;
    const double off = std::fabs(got[i] - want.value[i]);
    if (c < kChannels && !(off <= want.bound[i])) return "";
  }
  return ", as if only the first 64 channels were computed";
}

std::string NotWritten(std::span<const double> got, const Bounded& want) {
  int64_t unwritten = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool is_right = std::fabs(got[i] - want.value[i]) <= want.bound[i];
    if (!is_right && !std::isnan(got[i])) return "";
    unwritten += is_right ? 0 : 1;
  }
  return absl::StrCat(", as if it had not been written, ", unwritten, " of ",
                      got.size());
}

}  // namespace lockstep
