#include "conformance/check/judge/fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/protocol/case.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

constexpr float kEpsilon = 1e-5f;

// [samples][width].
using Rows = std::vector<std::vector<float>>;

template <typename Vector>
void RoundIf(bool bfloat16, Vector& values) {
  if (!bfloat16) return;
  for (float& value : values) value = ToFloat(ToBFloat16(value));
}

template <typename In>
Rows Linear(const std::vector<In>& x, const std::vector<float>& weight,
            const std::vector<float>& bias, bool bfloat16) {
  Rows out;
  for (const In& row : x) {
    std::vector<float> y = bias;
    for (size_t i = 0; i < row.size(); ++i) {
      for (size_t j = 0; j < y.size(); ++j) {
        y[j] += row[i] * weight[i * y.size() + j];
      }
    }
    RoundIf(bfloat16, y);
    out.push_back(std::move(y));
  }
  return out;
}

template <typename In>
void LinearGradients(const std::vector<In>& x, const Rows& dy,
                     std::vector<float>& weight, std::vector<float>& bias) {
  std::fill(weight.begin(), weight.end(), 0.0f);
  std::fill(bias.begin(), bias.end(), 0.0f);
  for (size_t n = 0; n < x.size(); ++n) {
    for (size_t j = 0; j < bias.size(); ++j) {
      bias[j] += dy[n][j];
      for (size_t i = 0; i < x[n].size(); ++i) {
        weight[i * bias.size() + j] += x[n][i] * dy[n][j];
      }
    }
  }
}

// Normalises in place; keeps what backward needs.
struct BatchNorm {
  std::vector<float> mean, variance, inverse;  // Variance biased.
  Rows normalised;

  void Forward(const FakeTensors& weights, const FakeMode& mode, Rows& z);
  // Turns the gradient of the output into that of the input.
  void Backward(const FakeTensors& weights, Rows& d,
                FakeTensors& gradients) const;
};

void BatchNorm::Forward(const FakeTensors& weights, const FakeMode& mode,
                        Rows& z) {
  const auto count = static_cast<float>(z.size());
  mean.assign(kFakeHidden, 0);
  variance.assign(kFakeHidden, 0);
  inverse.assign(kFakeHidden, 0);
  normalised = z;
  for (size_t j = 0; j < kFakeHidden; ++j) {
    for (const auto& row : z) mean[j] += row[j] / count;
    for (const auto& row : z) {
      variance[j] += (row[j] - mean[j]) * (row[j] - mean[j]) / count;
    }
    if (!mode.training) {
      mean[j] = weights.at("bn.running_mean")[j];
      variance[j] = weights.at("bn.running_var")[j];
    }
    inverse[j] = 1 / std::sqrt(variance[j] + kEpsilon);
    for (size_t n = 0; n < z.size(); ++n) {
      normalised[n][j] = (z[n][j] - mean[j]) * inverse[j];
      z[n][j] = weights.at("bn.weight")[j] * normalised[n][j] +
                weights.at("bn.bias")[j];
    }
  }
}

void BatchNorm::Backward(const FakeTensors& weights, Rows& d,
                         FakeTensors& gradients) const {
  const auto count = static_cast<float>(d.size());
  for (size_t j = 0; j < kFakeHidden; ++j) {
    float sum = 0, product = 0;
    for (size_t n = 0; n < d.size(); ++n) {
      sum += d[n][j];
      product += d[n][j] * normalised[n][j];
    }
    gradients["bn.weight"][j] = product;
    gradients["bn.bias"][j] = sum;
    for (size_t n = 0; n < d.size(); ++n) {
      d[n][j] = weights.at("bn.weight")[j] * inverse[j] *
                (d[n][j] - sum / count - normalised[n][j] * product / count);
    }
  }
}

// The losses, and in place of the logits their gradients.
void CrossEntropy(const FakeBatch& batch, Rows& logits, FakePass& pass) {
  const auto count = static_cast<float>(batch.y.size());
  for (size_t n = 0; n < logits.size(); ++n) {
    std::vector<float>& row = logits[n];
    const auto label = static_cast<size_t>(batch.y[n]);
    const auto largest = std::max_element(row.begin(), row.end());
    pass.correct.push_back(static_cast<size_t>(largest - row.begin()) == label);
    const float top = *largest;
    float sum = 0;
    for (const float value : row) sum += std::exp(value - top);
    pass.losses.push_back(std::log(sum) + top - row[label]);
    for (size_t j = 0; j < row.size(); ++j) {
      row[j] = (std::exp(row[j] - top) / sum - (j == label ? 1 : 0)) / count;
    }
  }
}

// The gradient in front of tanh, whose outputs are `hidden`, from that of the
// logits.
Rows BeforeTanh(const std::vector<float>& weight, const Rows& hidden,
                const Rows& d, bool bfloat16) {
  Rows dh;
  for (size_t n = 0; n < hidden.size(); ++n) {
    dh.emplace_back(kFakeHidden, 0.0f);
    for (size_t i = 0; i < kFakeHidden; ++i) {
      for (size_t j = 0; j < kFakeClasses; ++j) {
        dh[n][i] += weight[i * kFakeClasses + j] * d[n][j];
      }
      dh[n][i] *= 1 - hidden[n][i] * hidden[n][i];
    }
    RoundIf(bfloat16, dh[n]);
  }
  return dh;
}

class Random {
 public:
  std::vector<float> Uniform(size_t size, float low, float high) {
    std::vector<float> values(size);
    for (float& value : values) {
      value = low + (high - low) * static_cast<float>(engine_() * 0x1p-32);
    }
    return values;
  }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(engine_() * 0x1p-32 *
                                static_cast<double>(bound));
  }

 private:
  std::mt19937 engine_{11};
};

void FillPart(const std::string& part, Random& random, CaseFiles& files) {
  const int64_t size = SampleCount(files, part);
  std::vector<float> images;
  std::vector<int64_t> labels;
  for (int64_t n = 0; n < size; ++n) {
    labels.push_back(random.Below(kFakeClasses));
    for (const float value : random.Uniform(kFakeInputs, -1, 1)) {
      images.push_back(value + static_cast<float>(labels.back()));
    }
  }
  files.data.tensors[part + ".images"] =
      NamedTensor::Of<float>({size, 1, 2, 2}, images);
  files.data.tensors[part + ".labels"] =
      NamedTensor::Of<int64_t>({size}, labels);
}

}  // namespace

bool IsFakeBuffer(const std::string& name) {
  return name.starts_with("bn.running") || name.ends_with("tracked");
}

FakePass RunFakeModel(const FakeTensors& weights, const FakeBatch& batch,
                      const FakeMode& mode) {
  FakePass pass;
  Rows hidden =
      Linear(batch.x, weights.at("W1"), weights.at("b1"), mode.bfloat16);
  BatchNorm norm;
  if (mode.batch_norm) norm.Forward(weights, mode, hidden);
  for (auto& row : hidden) {
    for (float& value : row) value = std::tanh(value);
    RoundIf(mode.bfloat16, row);
  }
  Rows d = Linear(hidden, weights.at("W2"), weights.at("b2"), mode.bfloat16);
  CrossEntropy(batch, d, pass);
  FakeTensors& gradients = pass.gradients;
  for (const char* name : {"W1", "b1", "W2", "b2"}) {
    gradients[name] = weights.at(name);
  }
  if (mode.batch_norm) {
    gradients["bn.weight"] = gradients["bn.bias"] = weights.at("bn.weight");
  }
  LinearGradients(hidden, d, gradients["W2"], gradients["b2"]);
  Rows dh = BeforeTanh(weights.at("W2"), hidden, d, mode.bfloat16);
  if (mode.batch_norm) norm.Backward(weights, dh, gradients);
  LinearGradients(batch.x, dh, gradients["W1"], gradients["b1"]);
  for (auto& [name, values] : gradients) RoundIf(mode.bfloat16, values);
  pass.mean = norm.mean;
  pass.variance = norm.variance;
  const auto count = static_cast<float>(batch.y.size());
  for (float& value : pass.variance) value *= count / std::max(1.0f, count - 1);
  return pass;
}

FakeBatch GatherFake(const CaseFiles& files, const std::string& part,
                     std::span<const int64_t> indices) {
  const Values images = ToValues(files.data.tensors.at(part + ".images"));
  const Values labels = ToValues(files.data.tensors.at(part + ".labels"));
  FakeBatch batch;
  for (const int64_t index : indices) {
    const auto row = static_cast<size_t>(index);
    batch.x.emplace_back();
    for (size_t i = 0; i < kFakeInputs; ++i) {
      batch.x.back()[i] = static_cast<float>(images[row * kFakeInputs + i]);
    }
    batch.y.push_back(static_cast<int64_t>(labels[row]));
  }
  return batch;
}

CheckCase WithFakeModel(CheckCase check) {
  Random random;
  CaseFiles& files = check.files;
  FillPart("train", random, files);
  FillPart("test", random, files);
  auto& weights = files.weights.tensors;
  weights.clear();
  const auto inputs = static_cast<int64_t>(kFakeInputs);
  const auto hidden = static_cast<int64_t>(kFakeHidden);
  const auto classes = static_cast<int64_t>(kFakeClasses);
  weights["W1"] =
      NamedTensor::Of<float>({inputs, hidden}, random.Uniform(24, -1, 1));
  weights["b1"] =
      NamedTensor::Of<float>({hidden}, random.Uniform(6, -0.5f, 0.5f));
  weights["W2"] =
      NamedTensor::Of<float>({hidden, classes}, random.Uniform(18, -1, 1));
  weights["b2"] =
      NamedTensor::Of<float>({classes}, random.Uniform(3, -0.5f, 0.5f));
  check.layers = {{"the first layer", {"W1", "b1"}},
                  {"the last layer", {"W2", "b2"}}};
  if (check.all_ranks.c.batch_norm != "none") {
    weights["bn.weight"] =
        NamedTensor::Of<float>({hidden}, random.Uniform(6, 0.5f, 1));
    weights["bn.bias"] =
        NamedTensor::Of<float>({hidden}, random.Uniform(6, -0.5f, 0.5f));
    weights["bn.running_mean"] =
        NamedTensor::Of<float>({hidden}, random.Uniform(6, 0, 0));
    weights["bn.running_var"] =
        NamedTensor::Of<float>({hidden}, random.Uniform(6, 1, 1));
    weights["bn.num_batches_tracked"] =
        NamedTensor::Of<int64_t>({}, std::vector<int64_t>{0});
    check.layers.insert(check.layers.begin() + 1,
                        {"the batch norm",
                         {"bn.weight", "bn.bias", "bn.running_mean",
                          "bn.running_var", "bn.num_batches_tracked"}});
  }
  for (const std::string& name : check.all_ranks.c.unused) {
    weights[name] = NamedTensor::Of<float>({4}, random.Uniform(4, 1, 2));
  }
  return check;
}

}  // namespace lockstep
