// Finds causes that fit a wrong step of the network.
#include "conformance/network/network_causes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "conformance/network/architecture_mutants.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

// Returns the index of the first tensor whose digests differ.
std::optional<size_t> FirstDifference(std::span<const uint64_t> a,
                                      std::span<const uint64_t> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return i;
  }
  return {};
}

// Returns, for example, "; ranks 0, 1 agree, ranks 2, 3 agree", if the ranks
// form groups of equal size that agree. Returns "" otherwise.
std::string GroupsOf(const TestedNetwork& tested, const NetworkTrace& trace,
                     size_t moment) {
  std::vector<std::vector<size_t>> groups;
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const auto alike = [&](const std::vector<size_t>& group) {
      return DifferenceOfRanks(tested, trace.ranks[group[0]][moment],
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

// Returns "resnet_block2.0.bn1" for "resnet_block2.0.bn1.running_mean".
std::string LayerOf(const ParameterSpec& spec) {
  return spec.name.substr(0, spec.name.rfind('.'));
}

// Explains running statistics that differ in one batch norm and in no other.
std::string OneNorm(const TestedNetwork& tested, const RankMoment& a,
                    const RankMoment& b) {
  std::set<std::string> norms, different;
  for (const ParameterSpec& spec : tested.buffer_specs()) {
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

// Explains gradients that differ in the parameters of every batch norm, or of
// one layer, and in no others.
std::string LayerGradients(const TestedNetwork& tested, const RankMoment& a,
                           const RankMoment& b) {
  const auto& specs = tested.specs();
  if (a.gradients.size() != specs.size()) return "";
  std::set<std::string> different;
  bool norms = true;
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool differs = a.gradients[i] != b.gradients[i];
    if (differs) different.insert(LayerOf(specs[i]));
    norms = norms && differs == tested.IsNorm(specs[i]);
  }
  if (different.empty()) return "";
  if (norms) {
    return "; those of every batch norm differ, and no others: not reduced?";
  }
  if (different.size() > 1) return "";
  return absl::StrCat("; those of ", *different.begin(),
                      " differ, and no others: not reduced?");
}

// The place of an attention's heads among the rows of the linear layer before
// it. The outputs of this layer are queries, keys and values.
struct AttentionRows {
  std::string name;
  const ParameterSpec& weight;
  const ParameterSpec& bias;
  int64_t heads;

  int64_t width() const { return bias.size / 3; }
  int64_t head_size() const { return width() / heads; }

  // Whether all rows of the head are zero in `all`.
  bool IsZero(int64_t head, std::span<const double> all) const {
    const int64_t columns = weight.size / bias.size;
    for (int64_t part = 0; part < 3; ++part) {
      const int64_t row = part * width() + head * head_size();
      const auto rows =
          all.subspan(weight.offset + row * columns, head_size() * columns);
      if (std::ranges::count(rows, 0) != std::ssize(rows)) return false;
    }
    return true;
  }

  template <typename T>
  void ScaleQueries(T factor, std::span<T> all) const {
    for (T& v : all.subspan(weight.offset, weight.size / 3)) v *= factor;
    for (T& v : all.subspan(bias.offset, width())) v *= factor;
  }
};

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

// Returns k if `got` is k times `want`.
std::optional<double> FactorOf(std::span<const double> got,
                               std::span<const double> want) {
  const double k = Dot(got, want) / Dot(want, want);
  std::vector<double> scaled(want.begin(), want.end());
  for (double& v : scaled) v *= k;
  if (Distance(got, scaled) <= kFit * std::sqrt(Dot(want, want))) return k;
  return {};
}

// Returns the shortcuts: every use of a value except its first use, which is a
// block's branch.
std::vector<Consumer> ShortcutsOf(const Network& network) {
  const std::vector<Network::Operation>& operations = network.operations();
  std::vector<bool> is_used(operations.size() + 1);  // Indexed by value.
  std::vector<Consumer> shortcuts;
  for (size_t i = 0; i < operations.size(); ++i) {
    const std::vector<int>& inputs = operations[i].inputs;
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (is_used[inputs[k]]) {
        shortcuts.push_back({static_cast<int>(i), static_cast<int>(k)});
      }
      is_used[inputs[k]] = true;
    }
  }
  return shortcuts;
}

// Whether bfloat16 can represent all of these values.
// Returns one tensor's values out of `all`.
template <typename T>
std::vector<double> PartOf(const ParameterSpec& spec, std::span<T> all) {
  const std::span<T> part = all.subspan(spec.offset, spec.size);
  return {part.begin(), part.end()};
}

// Describes the batch statistics that are not expected.
const char* DescribeUnexpectedStatistics(BatchStatistics expected) {
  return expected == BatchStatistics::kLocal
             ? "the global batch: SyncBatchNorm?"
             : "each rank's own batch: local batch norm?";
}

bool Near(double k, double what) {
  return std::abs(k - what) <= kFit * std::abs(what);
}

}  // namespace

double Distance(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> d = Minus(a, b);
  return std::sqrt(Dot(d, d));
}

bool IsBFloat16(std::span<const float> values) {
  return std::ranges::all_of(values, [](float v) {
    return (std::bit_cast<uint32_t>(v) & 0xffff) == 0;
  });
}

std::string DifferenceOfRanks(const TestedNetwork& tested, const RankMoment& a,
                              const RankMoment& b) {
  const auto& specs = tested.specs();
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
        ElementName(tested.buffer_specs(), static_cast<int64_t>(i)),
        a.running[i], b.running[i]);
  }
  if (a.batches != b.batches) return "num_batches_tracked";
  if (const auto i = FirstDifference(a.parameters, b.parameters)) {
    return "parameters: " + specs[*i].name;
  }
  return "";
}

std::string CauseOfDifference(const TestedNetwork& tested,
                              const NetworkTrace& trace, size_t rank,
                              size_t moment) {
  const RankMoment& zero = trace.ranks[0][moment];
  const RankMoment& own = trace.ranks[rank][moment];
  for (const std::string& cause :
       {GroupsOf(tested, trace, moment), LayerGradients(tested, zero, own),
        zero.gradients == own.gradients ? OneNorm(tested, zero, own) : ""}) {
    if (!cause.empty()) return cause;
  }
  return "";
}

std::string StepCauses::OfGradient(const ParameterSpec& spec,
                                   std::span<const float> got) {
  const std::vector<double> all(got.begin(), got.end());
  const auto own = std::span(all).subspan(spec.offset, spec.size);
  if (std::ranges::count(own, 0) == spec.size) {
    return "; it is zero: not trained?";
  }
  if (run_.tested->network().Count<BatchNormOp>() > 0 &&
      Fits(all, Other().gradient)) {
    return absl::StrCat("; the gradients are those of ",
                        DescribeUnexpectedStatistics(statistics_));
  }
  if (IsMeanOfMeans(all)) {
    return "; the gradients are the mean of the ranks' means, without weights";
  }
  if (IsOfLocalMasks(all)) {
    return "; the gradients are those of random masks that each rank draws for "
           "its samples from number 0 on: keyed by the rank's own numbers?";
  }
  if (const std::string cause = OfArchitecture(all); !cause.empty()) {
    return cause;
  }
  if (IsBFloat16(got.subspan(spec.offset, spec.size))) {
    return "; its values are bfloat16's: in a coarser type than float32?";
  }
  const auto k =
      FactorOf(own, std::span(want_.gradient).subspan(spec.offset, spec.size));
  if (!k || Near(*k, 1)) return "";
  if (Near(*k, run_.world_size())) {
    return absl::StrFormat(
        "; it is %.3g times it, the world size: summed "
        "over the ranks twice?",
        *k);
  }
  return absl::StrFormat("; it is %.3g times it", *k);
}

bool StepCauses::Fits(std::span<const double> got,
                      std::span<const double> other) const {
  return Distance(got, other) <= kFit * Distance(want_.gradient, other);
}

bool StepCauses::IsMeanOfMeans(const std::vector<double>& gradient) const {
  return std::ranges::count(run_.deal, 0) == 0 &&
         Fits(gradient, MeanOfMeansGradient(in_, run_.deal));
}

bool StepCauses::IsOfLocalMasks(const std::vector<double>& gradient) const {
  std::vector<int64_t> own;  // Each sample's number on its rank.
  for (const int64_t count : run_.deal) {
    for (int64_t i = 0; i < count; ++i) own.push_back(i);
  }
  StepInput in = in_;
  in.keep = [&own, keep = MaskOf(step_)](int layer, double rate, int64_t sample,
                                         int64_t element) {
    return keep(layer, rate, own[sample], element);
  };
  return Fits(gradient, ReferenceStep(in).gradient);
}

std::string StepCauses::OfAttention(const std::vector<double>& gradient) const {
  const Network& network = run_.tested->network();
  std::vector<AttentionRows> layers;
  for (const Network::Operation& operation : network.operations()) {
    const auto* attention = std::get_if<AttentionOp>(&operation.kind);
    if (attention == nullptr) continue;
    const int before = operation.inputs[0] - 1;
    const auto& linear = std::get<LinearOp>(network.operations()[before].kind);
    layers.push_back({operation.name, run_.tested->specs()[linear.weight],
                      run_.tested->specs()[linear.bias], attention->heads});
  }
  for (const AttentionRows& rows : layers) {
    for (int64_t head = 0; head < rows.heads; ++head) {
      if (rows.IsZero(head, gradient) && !rows.IsZero(head, want_.gradient)) {
        return absl::StrFormat("; head %d of %s has no gradient: left out?",
                               head, rows.name);
      }
    }
  }
  if (layers.empty()) return "";
  // Attention without its scale equals attention with queries that are larger
  // by this factor.
  const double factor = std::sqrt(static_cast<double>(layers[0].head_size()));
  std::vector<float> parameters(in_.parameters.begin(), in_.parameters.end());
  for (const AttentionRows& rows : layers) {
    rows.ScaleQueries(static_cast<float>(factor), std::span(parameters));
  }
  StepInput in = in_;
  in.parameters = parameters;
  std::vector<double> unscaled = ReferenceStep(in).gradient;
  for (const AttentionRows& rows : layers) {
    rows.ScaleQueries(factor, std::span(unscaled));
  }
  if (!Fits(gradient, unscaled)) return "";
  return absl::StrFormat(
      "; the gradients are those of attention whose scores are %.3g times as "
      "large: not divided by the root of a head's size?",
      factor);
}

bool StepCauses::IsOfStrideInFirst(const std::vector<double>& gradient) const {
  const std::unique_ptr<const Network> other =
      WithStrideInFirstConvolution(run_.tested->network());
  if (other == nullptr) return false;
  StepInput in = in_;
  in.network = other.get();
  return Fits(gradient, ReferenceStep(in).gradient);
}

std::string StepCauses::OfArchitecture(
    const std::vector<double>& gradient) const {
  if (std::string cause = OfAttention(gradient); !cause.empty()) return cause;
  if (IsOfStrideInFirst(gradient)) {
    return "; the gradients are those of bottlenecks with their stride in the "
           "first convolution, of 1x1, not in the second, of 3x3: ResNet v1?";
  }
  return OfShortcuts(gradient);
}

std::string StepCauses::OfShortcuts(const std::vector<double>& gradient) const {
  const Network& network = run_.tested->network();
  for (const Consumer& shortcut : ShortcutsOf(network)) {
    if (!Fits(gradient, LeftOutGradient(in_, shortcut))) continue;
    return absl::StrCat("; the gradient that comes over the shortcut into ",
                        network.operations()[shortcut.operation].name,
                        " is missing: not added to the branch's?");
  }
  return "";
}

std::string StepCauses::OfBuffer(const ParameterSpec& spec, int rank,
                                 std::span<const float> before,
                                 std::span<const float> after,
                                 std::span<const double> want) {
  const std::vector<double> old = PartOf(spec, before);
  if (PartOf(spec, after) == old) {
    return "; it is what it was before the step: not updated?";
  }
  if (IsBFloat16(after.subspan(spec.offset, spec.size))) {
    return "; its values are bfloat16's: in a coarser type than float32?";
  }
  if (const std::string cause = OfOtherStatistics(spec, rank, after, want);
      !cause.empty()) {
    return cause;
  }
  const std::vector<double> moved = Minus(PartOf(spec, after), old);
  const std::vector<double> due = Minus(PartOf(spec, want), old);
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
  return "";
}

std::string StepCauses::OfOtherStatistics(const ParameterSpec& spec, int rank,
                                          std::span<const float> after,
                                          std::span<const double> want) {
  const std::vector<double> got = PartOf(spec, after);
  double nearest = std::numeric_limits<double>::infinity();
  std::string name;
  const auto compare = [&](std::span<const double> all,
                           const std::string& its_name) {
    const std::vector<double> other = PartOf(spec, all);
    const double distance = Distance(got, other);
    if (!(distance <= kFit * Distance(PartOf(spec, want), other))) return;
    if (distance >= nearest) return;
    nearest = distance;
    name = its_name;
  };
  compare(Other().RunningOn(rank), DescribeUnexpectedStatistics(statistics_));
  for (int other = 0; other < std::ssize(want_.running); ++other) {
    if (other == rank || want_.running.size() == 1) continue;
    compare(want_.RunningOn(other), absl::StrCat("rank ", other, "'s share"));
  }
  if (name.empty()) return "";
  return "; the running statistics are those of " + name;
}

const NetworkStep& StepCauses::Other() {
  if (!other_) {
    StepInput in = in_;
    const bool is_global = statistics_ == BatchStatistics::kGlobal;
    in.local_deal = {};
    if (is_global) in.local_deal = run_.deal;
    other_ = ReferenceStep(in);
  }
  return *other_;
}

}  // namespace lockstep::conformance
