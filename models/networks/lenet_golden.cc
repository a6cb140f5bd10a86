// Reads the golden file and compares a model's gradients and buffers with it.
#include "models/networks/lenet_golden.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "models/model.h"

namespace lockstep {
namespace {

double ReadNumber(std::istream& words) {
  std::string word;  // operator>> does not read hexadecimal floats.
  words >> word;
  return std::strtod(word.c_str(), nullptr);
}

// Relative to the tensor's norm.
double WorstOf(const GoldenTensor& want, std::span<const float> got) {
  double worst = std::abs(Norm(got) - want.norm) / want.norm;
  for (const auto& [at, value] : want.entries) {
    const double error = std::abs(got[at] - value) / want.norm;
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace

Samples::Samples(int64_t n) : images(n * kPixels), labels(n) {
  for (int64_t i = 0; i < n * kPixels; ++i) {
    images[i] = static_cast<float>((i * i + 31 * i) % 127 - 40) / 64;
  }
  for (int64_t i = 0; i < n; ++i) labels[i] = (i * 7 + 3) % 10;
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

std::vector<Golden> ReadGolden(const std::string& path) {
  std::ifstream file(path);
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, name;
    words >> word;
    if (word == "batch") {
      Golden golden;
      words >> golden.n >> word >> golden.weight_scale >> word;
      golden.loss = ReadNumber(words);
      goldens.push_back(golden);
    } else if (word == "gradient" || word == "buffer") {
      words >> name;
      GoldenTensor& tensor = word == "gradient" ? goldens.back().gradients[name]
                                                : goldens.back().buffers[name];
      tensor.norm = ReadNumber(words);
      for (int64_t at; words >> at;) {
        tensor.entries.emplace_back(at, ReadNumber(words));
      }
    }
  }
  return goldens;
}

double WorstError(const Golden& golden, double loss, Model& model) {
  double worst = std::abs(loss - golden.loss) / golden.loss;
  size_t found = 0;
  const auto include = [&](const std::map<std::string, GoldenTensor>& want,
                           const std::string& name,
                           std::span<const float> got) {
    const auto tensor = want.find(name);
    if (tensor == want.end()) return;
    ++found;
    const double error = WorstOf(tensor->second, got);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  };
  for (int i = 0; i < model.parameters().count(); ++i) {
    include(golden.gradients, model.parameters().specs()[i].name,
            model.parameters().gradient(i));
  }
  for (int i = 0; i < model.buffers().count(); ++i) {
    if (model.buffers().specs()[i].type != DataType::kFloat32) continue;
    include(golden.buffers, model.buffers().specs()[i].name,
            model.buffers().value(i));
  }
  const bool all = found == golden.gradients.size() + golden.buffers.size();
  return all ? worst : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lockstep
