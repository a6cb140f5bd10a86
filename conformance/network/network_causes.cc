// Fits causes to a step of the network.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "conformance/checks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/network/resnet_reference.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

// How far, of what it would explain, an explanation may be off.
constexpr double kFit = 0.05;

// The number of the first tensor whose digests differ.
std::optional<size_t> FirstDifference(std::span<const uint64_t> a,
                                      std::span<const uint64_t> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return i;
  }
  return {};
}

// "; ranks 0, 1 agree, ranks 2, 3 agree", where equal groups of several do;
// else "".
std::string GroupsOf(const NetworkTrace& trace, size_t moment) {
  std::vector<std::vector<size_t>> groups;
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const auto alike = [&](const std::vector<size_t>& group) {
      return DifferenceOfRanks(trace.ranks[group[0]][moment],
                               trace.ranks[rank][moment])
          .empty();
    };
    const auto group = std::find_if(groups.begin(), groups.end(), alike);
    (group == groups.end() ? groups.emplace_back() : *group).push_back(rank);
  }
  const auto as_many = [&groups](const std::vector<size_t>& group) {
    return group.size() == groups[0].size();
  };
  if (groups.size() < 2 || groups[0].size() < 2 ||
      !std::all_of(groups.begin(), groups.end(), as_many)) {
    return "";
  }
  std::string text;
  for (const std::vector<size_t>& group : groups) {
    absl::StrAppend(&text, text.empty() ? "; " : ", ", "ranks ",
                    absl::StrJoin(group, ", "), " agree");
  }
  return text + ": groups of their own?";
}

// "resnet_block2.0.bn1" of "resnet_block2.0.bn1.running_mean".
std::string LayerOf(const ParameterSpec& spec) {
  return spec.name.substr(0, spec.name.rfind('.'));
}

// Where one batch norm's running statistics differ and no other's.
std::string OneNorm(const RankMoment& a, const RankMoment& b) {
  std::set<std::string> norms, different;
  for (const ParameterSpec& spec : NetworkBufferSpecs()) {
    norms.insert(LayerOf(spec));
    const auto begin = a.running.begin() + spec.offset;
    if (!std::equal(begin, begin + spec.size,
                    b.running.begin() + spec.offset)) {
      different.insert(LayerOf(spec));
    }
  }
  if (different.size() != 1) return "";
  return absl::StrCat("; of ", norms.size(), " batch norms, ",
                      *different.begin(), " alone: not synchronised there?");
}

// Where the gradients of every batch norm's parameters differ and no other's.
std::string NormGradients(const RankMoment& a, const RankMoment& b) {
  const auto& specs = NetworkSpecs();
  if (a.gradients.size() != specs.size()) return "";
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool differs = a.gradients[i] != b.gradients[i];
    if (differs != IsNorm(specs[i])) return "";
  }
  return "; those of every batch norm differ, and no others: not reduced?";
}

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> Minus(std::span<const double> a,
                          std::span<const double> b) {
  std::vector<double> out(a.begin(), a.end());
  for (size_t i = 0; i < out.size(); ++i) out[i] -= b[i];
  return out;
}

double Distance(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> d = Minus(a, b);
  return std::sqrt(Dot(d, d));
}

// k, if `got` is k times `want`.
std::optional<double> FactorOf(std::span<const double> got,
                               std::span<const double> want) {
  const double k = Dot(got, want) / Dot(want, want);
  std::vector<double> scaled(want.begin(), want.end());
  for (double& v : scaled) v *= k;
  if (Distance(got, scaled) <= kFit * std::sqrt(Dot(want, want))) return k;
  return {};
}

bool Near(double k, double what) {
  return std::abs(k - what) <= kFit * std::abs(what);
}

}  // namespace

std::string DifferenceOfRanks(const RankMoment& a, const RankMoment& b) {
  const auto& specs = NetworkSpecs();
  if (const auto i = FirstDifference(a.gradients, b.gradients)) {
    return "gradients: " + specs[*i].name;
  }
  for (size_t i = 0; i < a.running.size(); ++i) {
    if (std::bit_cast<uint32_t>(a.running[i]) ==
        std::bit_cast<uint32_t>(b.running[i])) {
      continue;
    }
    return absl::StrFormat(
        "running statistics: %s is %.9g and %.9g",
        ElementName(NetworkBufferSpecs(), static_cast<int64_t>(i)),
        a.running[i], b.running[i]);
  }
  if (a.batches != b.batches) return "num_batches_tracked";
  if (const auto i = FirstDifference(a.parameters, b.parameters)) {
    return "parameters: " + specs[*i].name;
  }
  return "";
}

std::string CauseOfDifference(const NetworkTrace& trace, size_t rank,
                              size_t moment) {
  const RankMoment& zero = trace.ranks[0][moment];
  const RankMoment& own = trace.ranks[rank][moment];
  for (const std::string& cause :
       {GroupsOf(trace, moment), NormGradients(zero, own),
        zero.gradients == own.gradients ? OneNorm(zero, own) : ""}) {
    if (!cause.empty()) return cause;
  }
  return "";
}

std::string StepCauses::OfGradient(const ParameterSpec& spec,
                                   std::span<const float> got) {
  const std::vector<double> all(got.begin(), got.end());
  const std::vector<double>& local = Local().gradient;
  if (Distance(all, local) <= kFit * Distance(want_.gradient, local)) {
    return "; the gradients are those of each rank's own batch: local batch "
           "norm?";
  }
  if (IsMeanOfMeans(all)) {
    return "; the gradients are the mean of the ranks' means, without weights";
  }
  const auto k =
      FactorOf(std::span(all).subspan(spec.offset, spec.size),
               std::span(want_.gradient).subspan(spec.offset, spec.size));
  if (!k || Near(*k, 1)) return "";
  if (Near(*k, run_.world_size())) {
    return absl::StrFormat(
        "; it is %.3g times it, the world size: summed "
        "over the ranks twice?",
        *k);
  }
  return absl::StrFormat("; it is %.3g times it", *k);
}

bool StepCauses::IsMeanOfMeans(const std::vector<double>& gradient) const {
  if (std::count(run_.deal.begin(), run_.deal.end(), 0) > 0) return false;
  const std::vector<double> unweighted = MeanOfMeansGradient(
      trace_.first.parameters[step_], trace_.ranks[0][step_].running,
      trace_.first.samples[step_], run_.deal);
  return Distance(gradient, unweighted) <=
         kFit * Distance(want_.gradient, unweighted);
}

std::string StepCauses::OfBuffer(const ParameterSpec& spec, int rank,
                                 std::span<const float> before,
                                 std::span<const float> after,
                                 std::span<const double> want) {
  const auto part = [&spec](const auto& all) {
    const auto begin = all.begin() + spec.offset;
    return std::vector<double>(begin, begin + spec.size);
  };
  const std::vector<double> old = part(before);
  if (part(after) == old) {
    return "; it is what it was before the step: not updated?";
  }
  const std::vector<double> moved = Minus(part(after), old);
  const std::vector<double> due = Minus(part(want), old);
  if (const auto k = FactorOf(moved, due); k && !Near(*k, 1)) {
    const double weight = *k * kNetworkMomentum;
    const std::string cause =
        absl::StrFormat("; the batch weighs %.3g in it, not 0.1", weight);
    if (Near(weight, 1 - kNetworkMomentum))
      return cause + ": momentum inverted?";
    if (Near(weight, kNetworkMomentum * (2 - kNetworkMomentum))) {
      return cause + ": updated twice?";
    }
    return cause;
  }
  const std::vector<double> local = part(Local().running[rank]);
  if (Distance(part(after), local) <= kFit * Distance(part(want), local)) {
    return "; the running statistics are those of the rank's own batch: "
           "local batch norm?";
  }
  return "";
}

const LocalStep& StepCauses::Local() {
  if (!local_) {
    local_ = LocalReferenceStep(trace_.first.parameters[step_],
                                trace_.ranks[0][step_].running,
                                trace_.first.samples[step_], run_.deal);
  }
  return *local_;
}

}  // namespace lockstep::conformance
