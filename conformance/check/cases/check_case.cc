#include "conformance/check/cases/check_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

// Returns [0, size) with every block of `block` indices reversed, or rotated by
// half.
std::vector<int64_t> Permuted(int64_t size, int64_t block, bool reversed) {
  std::vector<int64_t> indices = Range(0, size);
  for (int64_t begin = 0; begin < size; begin += block) {
    const int64_t end = std::min(size, begin + block);
    const auto first = indices.begin() + begin, last = indices.begin() + end;
    if (reversed) {
      std::reverse(first, last);
    } else {
      std::rotate(first, first + (end - begin) / 2, last);
    }
  }
  return indices;
}

}  // namespace

const char* ClaimName(Claim claim) {
  constexpr const char* kNames[] = {"run",       "samples", "ranks_agree",
                                    "gradients", "loss",    "state",
                                    "evaluation"};
  return kNames[static_cast<size_t>(claim)];
}

std::vector<ExtraStart> ReorderedStarts(const CheckCase& check) {
  const Case& c = check.one_rank.c;
  const auto compares = [](Claim claim) {
    return claim == Claim::kGradients || claim == Claim::kLoss ||
           claim == Claim::kState || claim == Claim::kEvaluation;
  };
  if (c.shuffle || std::ranges::none_of(check.claims, compares)) return {};
  const int64_t train = SampleCount(check.files, "train");
  const int64_t test = SampleCount(check.files, "test");
  std::vector<ExtraStart> starts;
  for (const bool reversed : {true, false}) {
    CaseFiles files = WithSamples(check.files, "train",
                                  Permuted(train, c.global_batch(), reversed));
    files = WithSamples(files, "test",
                        Permuted(test, std::max<int64_t>(test, 1), reversed));
    starts.push_back({.plan = check.one_rank, .files = std::move(files)});
  }
  return starts;
}

namespace {

NamedTensor Rows(const NamedTensor& tensor, std::span<const int64_t> indices) {
  NamedTensor result{.type = tensor.type, .shape = tensor.shape, .data = {}};
  const int64_t rows = tensor.shape[0];
  const int64_t bytes = rows == 0 ? 0 : std::ssize(tensor.data) / rows;
  result.shape[0] = std::ssize(indices);
  for (const int64_t index : indices) {
    const auto begin = tensor.data.begin() + index * bytes;
    result.data.insert(result.data.end(), begin, begin + bytes);
  }
  return result;
}

double ToDouble(Float16 value) { return ToFloat(value); }
double ToDouble(BFloat16 value) { return ToFloat(value); }
template <typename T>
double ToDouble(T value) {
  return static_cast<double>(value);
}

template <typename T>
Values Convert(const NamedTensor& tensor) {
  Values values;
  for (const T value : tensor.Values<T>()) values.push_back(ToDouble(value));
  return values;
}

}  // namespace

std::vector<int64_t> Range(int64_t begin, int64_t count) {
  std::vector<int64_t> result(count);
  std::iota(result.begin(), result.end(), begin);
  return result;
}

int64_t SampleCount(const CaseFiles& files, const std::string& part) {
  const auto labels = files.data.tensors.find(part + ".labels");
  if (labels == files.data.tensors.end()) return 0;
  const std::vector<int64_t>& shape = labels->second.shape;
  return shape.empty() ? 0 : shape[0];
}

CaseFiles WithSamples(const CaseFiles& files, const std::string& part,
                      std::span<const int64_t> indices) {
  CaseFiles result = files;
  for (auto& [name, tensor] : result.data.tensors) {
    if (name.starts_with(part + ".")) tensor = Rows(tensor, indices);
  }
  return result;
}

Values ToValues(const NamedTensor& tensor) {
  return WithDataType(tensor.type,
                      [&]<typename E>(E) { return Convert<E>(tensor); });
}

Tensors TensorsOf(const RankOutput& output, const std::string& kind,
                  int64_t step) {
  const std::string prefix = absl::StrCat(kind, ".", step, "/");
  Tensors tensors;
  for (auto it = output.tensors.lower_bound(prefix);
       it != output.tensors.end() && it->first.starts_with(prefix); ++it) {
    tensors[it->first.substr(prefix.size())] = ToValues(it->second);
  }
  return tensors;
}

Tensors StartOf(const CheckCase& check) {
  Tensors tensors;
  for (const auto& [name, tensor] : check.files.weights.tensors) {
    tensors[name] = ToValues(tensor);
  }
  return tensors;
}

double LargestMagnitude(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

double LargestDifference(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double off = std::fabs(a[i] - b[i]);
    if (std::isnan(off)) return off;
    largest = std::max(largest, off);
  }
  return largest;
}

Values PlusTimes(const Values& a, double factor, const Values& b) {
  Values result(std::min(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) result[i] = a[i] + factor * b[i];
  return result;
}

Values Minus(const Values& a, const Values& b) { return PlusTimes(a, -1, b); }

Tensors PlusTimes(const Tensors& a, double factor, const Tensors& b) {
  Tensors result;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end()) continue;
    result[name] = PlusTimes(values, factor, other->second);
  }
  return result;
}

Tensors Minus(const Tensors& a, const Tensors& b) {
  return PlusTimes(a, -1, b);
}

Tensors Times(double factor, const Tensors& a) {
  Tensors result = a;
  for (auto& [name, values] : result) {
    for (double& value : values) value *= factor;
  }
  return result;
}

Tensors WeightedMean(std::span<const double> weights,
                     std::span<const Tensors> terms) {
  if (terms.empty()) return {};
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  Tensors sum = Times(weights[0] / total, terms[0]);
  for (size_t i = 1; i < terms.size(); ++i) {
    sum = PlusTimes(sum, weights[i] / total, terms[i]);
  }
  return sum;
}

double UnitInLastPlace(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return 0;
  return std::ldexp(1, std::ilogb(value) - digits + 1);
}

std::vector<std::string> NamesInOrder(const CheckCase& check) {
  const auto& weights = check.files.weights.tensors;
  std::vector<std::string> names;
  for (const NamedLayer& layer : check.layers) {
    for (const std::string& name : layer.tensors) {
      if (weights.contains(name)) names.push_back(name);
    }
  }
  for (const auto& [name, tensor] : weights) {
    if (!Includes(names, name)) names.push_back(name);
  }
  return names;
}

std::string WithLayer(const CheckCase& check, const std::string& name) {
  for (const NamedLayer& layer : check.layers) {
    if (!Includes(layer.tensors, name)) continue;
    return absl::StrCat(name, " (", layer.name, ")");
  }
  return name;
}

}  // namespace lockstep::conformance
