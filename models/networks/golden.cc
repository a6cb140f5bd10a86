#include "models/networks/golden.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <istream>
#include <span>
#include <string>

#include "models/model.h"

namespace lockstep {

double ReadNumber(std::istream& words) {
  std::string word;
  words >> word;
  return std::strtod(word.c_str(), nullptr);
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

GoldenTensor ReadGoldenTensor(std::istream& words) {
  GoldenTensor tensor;
  tensor.norm = ReadNumber(words);
  tensor.scale = tensor.norm;
  for (int64_t at; words >> at;) {
    tensor.entries.emplace_back(at, ReadNumber(words));
  }
  return tensor;
}

void Worst::Include(const std::string& name, double error) {
  if (!std::isnan(value) && !(error <= value)) {
    value = error;
    what = name;
  }
}

void Worst::Include(const std::string& name, const GoldenTensor& want,
                    std::span<const float> got) {
  Include(name, std::abs(Norm(got) - want.norm) / want.scale);
  for (const auto& [at, entry] : want.entries) {
    Include(name, std::abs(got[at] - entry) / want.scale);
  }
}

Worst Compare(const GoldenStep& golden, double loss, Model& model) {
  const Parameters& parameters = model.parameters();
  const Buffers& buffers = model.buffers();
  Worst worst;
  worst.Include("loss", std::abs(loss - golden.loss) / golden.loss);
  for (const auto& [name, want] : golden.gradients) {
    const int index = IndexOf(parameters.specs(), name);
    worst.Include(name, want, parameters.gradient(index));
  }
  for (const auto& [name, want] : golden.buffers) {
    const int index = IndexOf(buffers.specs(), name);
    worst.Include(name, want, buffers.value(index));
  }
  for (const auto& [name, want] : golden.counters) {
    const int index = IndexOf(buffers.specs(), name);
    worst.Include(name, buffers.counter(index) == want ? 0 : 1);
  }
  return worst;
}

}  // namespace lockstep
