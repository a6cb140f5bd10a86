// What the networks' tests compare with: PyTorch's numbers of a training step.
#ifndef LOCKSTEP_MODELS_NETWORKS_GOLDEN_H_
#define LOCKSTEP_MODELS_NETWORKS_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "models/model.h"

namespace lockstep {

// The next word as a number; operator>> does not read hexadecimal floats.
double ReadNumber(std::istream& words);

// The Euclidean norm.
double Norm(std::span<const float> x);

// The norm of a tensor and some of its elements.
struct GoldenTensor {
  double scale = 0;  // What the errors are measured by.
  double norm = 0;
  std::vector<std::pair<int64_t, double>> entries;
};

// Reads the rest of a line: the norm, then index and value of each entry. The
// scale is the norm.
GoldenTensor ReadGoldenTensor(std::istream& words);

// The gradients of a training step, and the buffers after it.
struct GoldenStep {
  double loss = 0;
  std::map<std::string, GoldenTensor> gradients, buffers;
  std::map<std::string, int64_t> counters;
};

// The largest error seen, and of what; the first NaN, if there is one.
struct Worst {
  void Include(const std::string& name, double error);
  void Include(const std::string& name, const GoldenTensor& want,
               std::span<const float> got);

  double value = 0;
  std::string what;
};

// Where `name` is in `specs`, of parameters or buffers; a failure if nowhere.
template <typename Specs>
int IndexOf(const Specs& specs, const std::string& name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return static_cast<int>(i);
  }
  ADD_FAILURE() << "nothing is named " << name;
  return 0;
}

// Compares the model after a step, and its loss, with what the golden step has.
// The loss's error is relative to it, a counter's is 1.
Worst Compare(const GoldenStep& golden, double loss, Model& model);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_GOLDEN_H_
