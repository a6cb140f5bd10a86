// The networks of the d2l chapter on multi-GPU training, models by name, and
// the random numbers of their initial weights: those that PyTorch draws.
#ifndef LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
#define LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/cpu/layers.h"
#include "models/model.h"

namespace lockstep {

// What can be said of a model before it is made.
struct ModelInfo {
  const char* name;  // CreateModel knows it by this.
  bool has_batch_norm;
  int64_t channels = 1;  // Of an image, as are height and width.
  int64_t height = 28;
  int64_t width = 28;
  int64_t classes = 10;
};

// Null if there is no such model.
const ModelInfo* FindModel(absl::string_view name);

// "lenet, lenet_bn, resnet18": what else there is, for messages.
std::string ModelNames();

// The model of that name with its initial weights from `seed`: "lenet",
// "lenet_bn", "resnet18", all on images [n, 1, 28, 28] of 10 classes. Errors:
// kInvalidArgument for another name, with the list of names.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view name,
                                                   uint64_t seed);

// The convolutions and batch norms of that model on `batch` images, in the
// order of its layers, a shortcut's last in its block; options.weights and
// options.bias are indices into its parameters. Computes nothing. Errors: those
// of CreateModel.
absl::StatusOr<PlannedCalls> CallsOf(absl::string_view name, int64_t batch);

// LeNet as the chapter writes it:
// images [n, 1, 28, 28] -> conv 20@3x3, ReLU, average pool 2x2 -> conv 50@5x5,
// ReLU, average pool 2x2 -> [n, 800] -> linear 128, ReLU -> linear 10.
// Parameters, named as there: W1 [20,1,3,3], b1 [20], W2 [50,20,5,5], b2 [50],
// W3 [800,128], b3 [128], W4 [128,10], b4 [10]; weights drawn from a normal
// distribution times 0.01 (the same draws as PyTorch's randn after
// manual_seed(seed)), biases zero. On the CPU, through oneDNN, on the calling
// thread's OpenMP threads.
std::unique_ptr<Model> CreateLeNet(uint64_t seed);

// The same with batch norm (torch.nn.BatchNorm2d with its defaults) after each
// convolution, before its ReLU: parameters bn1.weight, bn1.bias [20], bn2.*
// [50] after the convolution's; buffers bn1.running_mean, bn1.running_var,
// bn1.num_batches_tracked, bn2.*.
std::unique_ptr<Model> CreateLeNetWithBatchNorm(uint64_t seed);

// ResNet-18 as the chapter modifies it:
// images [n, 1, s, s] -> conv 64@3x3, padding 1, batch norm, ReLU -> two
// residual blocks each of 64, 128, 256 and 512 channels, the first of the last
// three with stride 2 and a 1x1 convolution as its shortcut -> global average
// pool -> linear 10. Every convolution has a bias; there is no max-pool.
//
// Parameters and buffers are named and ordered as in the state_dict of that
// PyTorch module ("0.weight", "resnet_block2.0.conv3.bias", "fc.1.weight").
// Initial values are those that PyTorch gives after manual_seed(seed), the
// module's construction, and the chapter's init_weights: convolution and linear
// weights normal times 0.01, their biases PyTorch's default; batch norm 1 and
// 0, and its running statistics 0 and 1.
//
// image_size: s, at least 1. width: the first stage's channels; a narrower one
// has the same layers at a fraction of the cost. On the CPU, through oneDNN, on
// the calling thread's OpenMP threads. 11.2 million parameters at width 64,
// which take a third of a second.
std::unique_ptr<Model> CreateResNet18(uint64_t seed, int64_t image_size = 28,
                                      int64_t width = 64);

// The numbers that PyTorch's CPU generator gives, in its order: after
// `torch.manual_seed(seed)` the n-th call here equals the n-th draw there.
//
// The generator is MT19937 on the low 32 bits of the seed. Integers and uniform
// numbers are PyTorch's bit for bit. Of normal numbers 16 and more are drawn by
// Box and Muller's method in float32 on blocks of 16, fewer one by one in
// float64, of which one may be kept for the next such draw; uniform draws leave
// that one where it is. log, sin and cos are this machine's in float64, where
// PyTorch has its own vectorised float32 versions, so a normal number
// r * cos(theta) may differ from PyTorch's by 4 float32 ulp of its radius
// r < 8: by less than 2^-19. (The draws that the test compares are within
// 2^-22.) Not thread safe.
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);

  // Overwrites host float32 `out`, any size, with standard normal numbers:
  // `torch.randn`. Cost: about 20 ns an element.
  void FillNormal(std::span<float> out);

  // Overwrites host float32 `out`, any size, with uniform numbers of
  // [low, high): `Tensor.uniform_(low, high)`. Cost: about 5 ns an element.
  void FillUniform(float low, float high, std::span<float> out);

 private:
  // 24 random bits, in [0, 1).
  float UniformFloat();
  // 53 random bits, in [0, 1); takes two numbers of the generator.
  double UniformDouble();
  // One normal number; every other call takes the one kept by the last.
  double NextNormal();

  std::mt19937 generator_;
  std::optional<double> kept_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORKS_H_
