// What LeNet's tests compare with: PyTorch's numbers, and the batch they are
// of.
#ifndef LOCKSTEP_MODELS_NETWORKS_LENET_GOLDEN_H_
#define LOCKSTEP_MODELS_NETWORKS_LENET_GOLDEN_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"

namespace lockstep {

inline constexpr int64_t kPixels = 28 * 28;

// The batch of testdata/generate_goldens.py.
struct Samples {
  explicit Samples(int64_t n);
  Batch batch() const { return {images, labels}; }
  Batch sample(int64_t i) const {
    return {std::span(images).subspan(i * kPixels, kPixels),
            std::span(labels).subspan(i, 1)};
  }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

double Norm(std::span<const float> x);

struct GoldenTensor {
  double norm = 0;
  std::vector<std::pair<int64_t, double>> entries;
};
struct Golden {
  int64_t n = 0;
  float weight_scale = 0;
  double loss = 0;
  std::map<std::string, GoldenTensor> gradients;
  std::map<std::string, GoldenTensor> buffers;  // float32 ones, after the step.
};

// The batches of a file that generate_goldens.py wrote; empty if it cannot be
// read.
std::vector<Golden> ReadGolden(const std::string& path);

// PyTorch's values are float64 ones of the same float32 weights, but for the
// few roundings of initialization.h. A float32 gradient here sums up to
// 17 * 26 * 26 = 11492 products, whose roundings, were they independent, would
// leave about sqrt(11492) * 2^-24 = 6e-6 of the norm; four layers of them.
inline constexpr double kGoldenTolerance = 4 * 6e-6;

// The largest error of any golden number, relative to the tensor's norm (for
// the loss, to the loss); NaN if one is.
double WorstError(const Golden& golden, double loss, Model& model);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_LENET_GOLDEN_H_
