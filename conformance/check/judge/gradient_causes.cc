#include "conformance/check/judge/gradient_causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/judge/loss_claim.h"
#include "conformance/check/judge/updates.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

using Names = std::vector<std::string>;

// Returns the diagnosis if the ranks' gradients are a combination of the
// gradients of the ranks' shares. Called if no factor of one rank's gradients
// fits.
std::optional<Diagnosis> DiagnoseFromShares(Evidence& evidence,
                                            const Names& names,
                                            const Tensors& got,
                                            const AllowedErrors& allowed) {
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return std::nullopt;
  const Tensors mean = MeanOfShares(*shares, false);
  const Tensors weighted = MeanOfShares(*shares, true);
  const std::string& norm = evidence.c.batch_norm;
  if (norm == "sync" && (Fits(names, weighted, got, allowed) ||
                         Fits(names, mean, got, allowed))) {
    return Diagnosis{.cause = Cause::kLocalBatchNorm};
  }
  if (Fits(names, mean, got, allowed)) {
    return Diagnosis{.cause = Cause::kMeanOfMeans};
  }
  for (size_t r = 0; r < shares->size(); ++r) {
    if (Fits(names, (*shares)[r].gradients, got, allowed)) {
      return Diagnosis{.cause = Cause::kNotReduced,
                       .facts = {.rank = static_cast<int>(r)}};
    }
  }
  const auto factor =
      FactorOf(names, mean, got, allowed,
               NamedFactors(evidence.world_size(), evidence.c.accumulate),
               /*any=*/false);
  if (!factor.has_value()) return std::nullopt;
  return Diagnosis{
      .cause = factor->cause,
      .facts = {.k = factor->k, .of = "the plain mean of the ranks' own"}};
}

// Returns whether the trainer's gradients are sums over samples. One rank's are
// then the sum of the shares' gradients, and the ranks hold the shares' mean.
bool IsSumOverSamples(Evidence& evidence, const Names& names,
                      const Reference& reference, const Tensors& got) {
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return false;
  const auto active = std::ranges::count_if(
      *shares, [](const ShareResult& share) { return share.count > 0; });
  const Tensors mean = MeanOfShares(*shares, false);
  const Tensors sum = Times(static_cast<double>(active), mean);
  return Fits(names, sum, reference.want, reference.allowed) &&
         Fits(names, mean, got, reference.allowed);
}

// Returns a start of one rank whose steps are the micro-batches of the first
// step; none if these have different sizes. Each micro-batch consists of the
// ranks' parts of equal position.
std::optional<ExtraStart> StartOnMicroBatches(const Evidence& evidence,
                                              double learning_rate) {
  const auto pieces = static_cast<size_t>(evidence.c.accumulate);
  std::vector<int64_t> indices;
  for (size_t i = 0; i < pieces; ++i) {
    for (int r = 0; r < evidence.world_size(); ++r) {
      const std::vector<int64_t>& share = evidence.rank(r).steps[0].indices;
      if (share.size() % pieces != 0) return std::nullopt;
      const auto size = static_cast<std::ptrdiff_t>(share.size() / pieces);
      const auto begin = share.begin() + static_cast<std::ptrdiff_t>(i) * size;
      indices.insert(indices.end(), begin, begin + size);
    }
  }
  ExtraStart start{
      .plan = {.c = evidence.check.one_rank.c},
      .files = WithSamples(evidence.check.files, "train", indices)};
  Case& c = start.plan.c;
  c.name = absl::StrCat(evidence.check.name, "_micro_batches");
  c.batch_sizes = {static_cast<int64_t>(indices.size() / pieces)};
  c.epochs = 1;
  c.shuffle = false;
  c.evaluate = false;
  c.learning_rate = learning_rate;
  c.write_gradients.clear();
  c.write_state = {evidence.c.accumulate};
  return start;
}

// Returns whether the parameters after the first step are those of one rank
// that updates them after each micro-batch. The trainer may or may not divide
// each micro-batch's loss by their number.
bool UpdatesEachMicroBatch(const Evidence& evidence) {
  const Case& c = evidence.c;
  if (c.accumulate < 2 || !Includes(c.write_state, int64_t{1})) return false;
  const Tensors got = TensorsOf(evidence.rank(0), "parameter", 1);
  const Reference once = OneRanksReference(evidence, "parameter", 1);
  Names names;
  for (const auto& [name, values] : once.want) names.push_back(name);
  if (Fits(names, once.want, got, once.allowed)) return false;
  const auto divisor = static_cast<double>(c.accumulate);
  for (const double rate : {c.learning_rate, c.learning_rate / divisor}) {
    const auto start = StartOnMicroBatches(evidence, rate);
    if (!start.has_value()) return false;
    const absl::StatusOr<TrainerRun> run = evidence.run_extra(*start);
    if (!run.ok() || run->ranks.size() != 1 || !run->ranks[0].status.ok()) {
      continue;
    }
    const Tensors after =
        TensorsOf(run->ranks[0].output, "parameter", c.accumulate);
    if (Fits(names, after, got, once.allowed, 2)) return true;
  }
  return false;
}

// Returns whether `value`, or a number within one rounding of it in float32,
// has at most `digits` binary digits.
bool HasDigits(double value, int digits) {
  int exponent;
  const double scaled = std::ldexp(std::frexp(value, &exponent), digits);
  constexpr double kFloatRounding = 0x1p-23;
  return std::fabs(scaled - std::round(scaled)) <=
         kFloatRounding * std::fabs(scaled);
}

// A type narrower than float32.
struct NarrowType {
  const char* name;
  int digits;
};

// Returns whether all values, times one common factor, have the digits of the
// type. Too few values may have them by chance.
bool HaveDigits(const Names& names, const Tensors& got, int world_size,
                int digits) {
  constexpr int kFewest = 8;
  for (const int factor : {1, world_size}) {
    int fits = 0, other = 0;
    for (const std::string& name : names) {
      for (const double value : got.at(name)) {
        if (value == 0) continue;
        ++(HasDigits(value * factor, digits) ? fits : other);
      }
    }
    if (other == 0 && fits >= kFewest) return true;
  }
  return false;
}

// Returns the type whose rounding explains the error of every gradient: the
// values have its digits, and the error is below one rounding of each rank's
// part and of each sum of parts.
const NarrowType* ReducedIn(Evidence& evidence, const Names& names,
                            const Reference& reference, const Tensors& got) {
  static constexpr NarrowType kTypes[] = {{"bfloat16", 8}, {"float16", 11}};
  const auto& shares = evidence.Shares();
  if (evidence.c.dtype != "float32" || !shares.ok()) return nullptr;
  const int ranks = evidence.world_size();
  for (const NarrowType& type : kTypes) {
    const auto explains = [&](const std::string& name) {
      double part = 0;
      for (const ShareResult& share : *shares) {
        if (share.count == 0) continue;
        part = std::max(part, LargestMagnitude(share.gradients.at(name)));
      }
      const double error =
          LargestDifference(reference.want.at(name), got.at(name));
      return error <= 2 * ranks * std::ldexp(part, -type.digits);
    };
    if (HaveDigits(names, got, ranks, type.digits) &&
        std::ranges::all_of(names, explains)) {
      return &type;
    }
  }
  return nullptr;
}

// Returns whether the wrong gradients begin, in the order of the backward pass,
// right behind a batch norm, while the loss is right.
bool WrongFromBatchNormOn(Evidence& evidence, const Names& names) {
  if (evidence.c.batch_norm != "sync") return false;
  const std::vector<NamedLayer>& layers = evidence.check.layers;
  for (size_t i = layers.size(); i-- > 0;) {
    const bool wrong = std::ranges::any_of(
        layers[i].tensors,
        [&](const std::string& name) { return Includes(names, name); });
    if (!wrong) continue;
    return i + 1 < layers.size() && IsBatchNorm(layers[i + 1]) &&
           JudgeLoss(evidence, 1).outcome == Outcome::kPassed;
  }
  return false;
}

// Returns the diagnosis of gradients that no factor explains.
std::optional<Diagnosis> DiagnoseWithoutFactor(Evidence& evidence,
                                               const Names& names,
                                               const Reference& reference,
                                               const Tensors& got) {
  const auto decay =
      DecayFactor(evidence, names, reference.want, got, /*factor=*/1,
                  StartOf(evidence.check), reference.allowed);
  if (decay.has_value()) {
    return Diagnosis{.cause = Cause::kWeightDecayScaled,
                     .facts = {.k = *decay}};
  }
  if (const NarrowType* type = ReducedIn(evidence, names, reference, got)) {
    return Diagnosis{.cause = Cause::kReducedInNarrowType,
                     .facts = {.of = type->name}};
  }
  if (WrongFromBatchNormOn(evidence, names)) {
    return Diagnosis{.cause = Cause::kLocalBatchNormBackward};
  }
  return std::nullopt;
}

}  // namespace

Diagnosis DiagnoseGradients(Evidence& evidence, const Names& names,
                            const Reference& reference, const Tensors& got,
                            int64_t step) {
  const Case& c = evidence.c;
  Names whose = names;
  const auto factor_of = [&](bool any) {
    return FactorOf(names, reference.want, got, reference.allowed,
                    NamedFactors(evidence.world_size(), c.accumulate), any);
  };
  auto factor = factor_of(/*any=*/false);
  std::optional<Diagnosis> found;
  if (step == 1 && factor.has_value() &&
      factor->cause == Cause::kDividedTwice &&
      IsSumOverSamples(evidence, names, reference, got)) {
    factor->cause = Cause::kLossIsSum;
  }
  if (!factor.has_value()) {
    found = DiagnoseFromShares(evidence, names, got, reference.allowed);
    if (!found.has_value() && step == 1 && UpdatesEachMicroBatch(evidence)) {
      found = Diagnosis{.cause = Cause::kUpdatesEachMicroBatch};
    }
    if (!found.has_value()) factor = factor_of(/*any=*/true);
    if (!found.has_value() && !factor.has_value() && step == 1) {
      found = DiagnoseWithoutFactor(evidence, names, reference, got);
    }
  }
  Diagnosis diagnosis = found.value_or(Diagnosis());
  if (factor.has_value()) {
    diagnosis.cause = factor->cause;
    diagnosis.facts.k = factor->k;
    whose = factor->names;
  }
  diagnosis.facts.tensors =
      NamesUnlessAll(evidence.check, whose, reference.want.size());
  return diagnosis;
}

}  // namespace lockstep::conformance
