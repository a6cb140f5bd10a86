// Networks as data: operations, and tensors with their names and first values.
// A description needs no memory, no device and no library. //models/cpu
// computes the networks that are described here.
#ifndef LOCKSTEP_MODELS_NETWORKS_NETWORK_H_
#define LOCKSTEP_MODELS_NETWORKS_NETWORK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/model.h"

namespace lockstep {

// The operations: how each computes its output from its inputs, per sample. An
// operation names its tensors by their index in Network::parameters() or
// Network::buffers(). kNoTensor means that the operation has no such tensor.
inline constexpr int kNoTensor = -1;

// 2-D convolution, a cross-correlation as PyTorch's conv2d, optionally followed
// by ReLU: [c, h, w] -> [out_channels, h', w']. h' = (h + 2 padding - kernel) /
// stride + 1, and w' likewise. Weights are [out_channels, c, kernel, kernel],
// bias is [out_channels].
struct ConvolutionOp {
  int weight = kNoTensor;
  int bias = kNoTensor;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;  // Zeros on each side.
  bool relu = false;
};

// y = W x + b, optionally followed by ReLU. x is a whole sample, [c, h, w] ->
// [out, 1, 1], with features in the order c, h, w as PyTorch's flatten gives.
// With per_position, x is each position separately: [c, h, w] -> [out, h, w].
struct LinearOp {
  int weight = kNoTensor;  // [out, in]; with inputs_first [in, out].
  int bias = kNoTensor;    // [out].
  bool inputs_first = false;
  bool per_position = false;
  bool relu = false;
};

// torch.nn.BatchNorm2d: y = (x - mean) / sqrt(variance + epsilon) * weight +
// bias. In training, mean and variance are the batch's. The second input, if
// any, is then added, and ReLU, if set, follows. Momentum 0.1.
struct BatchNormOp {
  int weight = kNoTensor;        // [c].
  int bias = kNoTensor;          // [c].
  int running_mean = kNoTensor;  // Buffers, each [c].
  int running_variance = kNoTensor;
  int batches = kNoTensor;  // The counter num_batches_tracked.
  double epsilon = 1e-5;
  bool relu = false;
};

// Pooling over windows. Padding counts as minus infinity for the maximum;
// average pooling has no padding. Rows and columns left over at the end are
// dropped.
struct PoolOp {
  bool maximum = false;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
};

// The average over all positions: [c, h, w] -> [c, 1, 1].
struct GlobalAveragePoolOp {};

// torch.nn.LayerNorm over the channels of each position.
struct LayerNormOp {
  int weight = kNoTensor;  // [c].
  int bias = kNoTensor;    // [c].
  double epsilon = 1e-6;
};

// x * Phi(x), where Phi is the normal distribution's (torch.nn.GELU()).
struct GeluOp {};

// Multi-head self-attention. The input holds, for each position, the result of
// a linear layer: [3 * c, h, w] -> [c, h, w]. Its channels are query, key and
// value, each of them head by head. The output is softmax(q k^T / sqrt(c /
// heads)) v.
struct AttentionOp {
  int64_t heads = 1;
  double dropout = 0;  // The dropout rate of the softmax, in training.
  int layer = 0;       // The layer's number for the masks' generator.
};

// Turns the patches of an image into a sequence that begins with the class
// token, and adds the position embedding: [c, h, w] -> [c, h * w + 1, 1].
struct EmbedOp {
  int class_token = kNoTensor;  // [1, 1, c].
  int position = kNoTensor;     // [1, h * w + 1, c].
};

// Takes only the first position: [c, h, w] -> [c, 1, 1].
struct FirstPositionOp {};

// In training, zeroes each value with probability `rate` and divides the other
// values by 1 - rate. In evaluation, returns its input.
struct DropoutOp {
  double rate = 0;
  int layer = 0;
};

// The sum of two inputs. In training, the second input of a whole sample is
// left out with probability drop_path, and otherwise divided by 1 - drop_path
// (stochastic depth, Huang et al. 2016, scaled as in timm).
struct AddOp {
  double drop_path = 0;
  int layer = 0;
};

using OperationKind =
    std::variant<ConvolutionOp, LinearOp, BatchNormOp, PoolOp,
                 GlobalAveragePoolOp, LayerNormOp, GeluOp, AttentionOp, EmbedOp,
                 FirstPositionOp, DropoutOp, AddOp>;

// The description of a parameter or buffer. The network's source gives the
// name.
struct TensorDescription {
  std::string name;
  std::vector<int64_t> shape;
  bool counter = false;  // true: an int64 without a shape; false: float32.
  // The value of all elements, before anything is drawn.
  float first_value = 0;

  // The number of elements: the product of the shape.
  int64_t size() const {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }
};

// One draw of a parameter's first values. Draws run in their order with one
// generator. A later draw may overwrite an earlier one, just as PyTorch
// constructs a module and then initialises it again.
struct Draw {
  enum class Kind {
    kUniform,          // In [-scale, scale).
    kNormal,           // Of standard deviation `scale`.
    kTruncatedNormal,  // As kNormal, cut off at +-2 (not at 2 scale), as timm.
    kConstant,
  };
  int parameter = 0;
  Kind kind = Kind::kNormal;
  double scale = 0;
};

// A value in a network that is being put together: the input, or an operation's
// result.
struct Value {
  int index = 0;
  Shape shape;  // The shape of one sample.
};

// A network, built operation by operation; afterwards read only. If an
// operation does not fit, the error becomes the network's status, and later
// calls do nothing. A layer's tensors are named "<name>.weight", "<name>.bias"
// and so on, unless stated otherwise. Until draws are added, weights and biases
// are 0 and norms' weights are 1.
class Network {
 public:
  // One operation. The result of operations()[i] is value i + 1; the network's
  // input is value 0.
  struct Operation {
    std::string name;
    OperationKind kind;
    // Values' numbers; two for AddOp, one or two for BatchNormOp.
    std::vector<int> inputs;
    Shape output;  // The shape of one sample: n = 1.
  };

  // input: the shape of one sample.
  Network(std::string name, const Shape& input);

  struct ConvolutionOptions {
    int64_t out = 1;
    int64_t kernel = 1;
    int64_t stride = 1;
    int64_t padding = 0;
    bool bias = true;
    bool relu = false;
  };
  struct LinearOptions {
    int64_t out = 1;
    bool per_position = false;
    bool inputs_first = false;
    bool relu = false;
  };

  Value input() const { return {0, input_}; }
  Value Convolution(const std::string& name, const Value& x,
                    const ConvolutionOptions& options);
  Value Linear(const std::string& name, const Value& x,
               const LinearOptions& options);
  Value BatchNorm(const std::string& name, const Value& x, bool relu);
  // Adds relu(batch_norm(x) + shortcut).
  Value BatchNormAddRelu(const std::string& name, const Value& x,
                         const Value& shortcut);
  Value Pool(const std::string& name, const Value& x, const PoolOp& options);
  Value GlobalAveragePool(const std::string& name, const Value& x);
  Value LayerNorm(const std::string& name, const Value& x);
  Value Gelu(const std::string& name, const Value& x);
  Value Attention(const std::string& name, const Value& qkv, int64_t heads,
                  double dropout);
  Value Embed(const Value& patches, const std::string& class_token,
              const std::string& position);
  Value FirstPosition(const std::string& name, const Value& x);
  Value Dropout(const std::string& name, const Value& x, double rate);
  Value Add(const std::string& name, const Value& x, const Value& branch,
            double drop_path);

  // Adds a parameter at this position in the order of parameters. Called before
  // the layer that uses the parameter is added.
  void Declare(const std::string& name, std::vector<int64_t> shape);
  void DeclareBatchNorm(const std::string& name, int64_t channels);

  // Renames the weight and the bias of the layer that was added last.
  void Rename(const std::string& weight, const std::string& bias);

  void AddDraw(int parameter, Draw::Kind kind, double scale);
  // Adds a draw by the parameter's name; an unknown name is an error.
  void AddDraw(const std::string& parameter, Draw::Kind kind, double scale);
  // Adds the draws of PyTorch's constructors of Linear and Conv2d: weights and
  // then the bias, if any, uniform in +-1 / sqrt(fan in).
  void DrawAsTorchConstructs(const std::string& layer);
  // Adds a draw of the layer's weights:
  // torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu").
  void DrawHeNormalFanOut(const std::string& layer);

  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return input_; }
  const std::vector<Operation>& operations() const { return operations_; }
  const std::vector<TensorDescription>& parameters() const {
    return parameters_;
  }
  const std::vector<TensorDescription>& buffers() const { return buffers_; }
  const std::vector<Draw>& draws() const { return draws_; }
  // The shape of one sample after the last operation: [classes, 1, 1].
  const Shape& output_shape() const;
  // Returns the shape of one sample of value number `value`.
  const Shape& ShapeOf(int value) const {
    return value == 0 ? input_ : operations_[value - 1].output;
  }
  // Returns the numbers of the values that several operations read. The input
  // is not among them.
  std::vector<int> ValuesWithSeveralUsers() const;
  int64_t classes() const { return output_shape().c; }
  // Returns the number of operations of this kind.
  template <typename Kind>
  int Count() const {
    int count = 0;
    for (const Operation& operation : operations_) {
      count += std::holds_alternative<Kind>(operation.kind) ? 1 : 0;
    }
    return count;
  }

  // kInvalidArgument, naming the network and the layer, if a layer did not fit.
  const absl::Status& status() const { return status_; }
  // Sets the status to `fault` of the layer, unless there is an error already.
  void Fail(absl::string_view layer, absl::string_view fault);

 private:
  Value Append(const std::string& name, OperationKind kind,
               std::vector<Value> inputs, const Shape& output);
  // Adds a parameter, or finds it if it was declared; returns its index.
  int AddParameter(const std::string& name, std::vector<int64_t> shape,
                   float first_value = 0);
  int AddBuffer(const std::string& name, std::vector<int64_t> shape,
                bool counter, float first_value = 0);
  // Returns the index, or kNoTensor if there is no such parameter.
  int FindParameter(absl::string_view name) const;
  // Returns whether the kernel fits the input; if not, fails.
  bool WindowFits(const std::string& name, const Value& x, int64_t kernel,
                  int64_t stride, int64_t padding);
  BatchNormOp BatchNormTensors(const std::string& name, int64_t channels);

  std::string name_;
  Shape input_;
  std::vector<Operation> operations_;
  std::vector<TensorDescription> parameters_;
  std::vector<TensorDescription> buffers_;
  std::vector<Draw> draws_;
  int random_layers_ = 0;
  absl::Status status_;
};

// The parameters and buffers of a network. Without a seed, values are the first
// values (zeros and ones). With a seed, values are drawn as PyTorch draws them
// after torch.manual_seed(seed).
Parameters CreateParameters(const Network& network);
Parameters CreateParameters(const Network& network, uint64_t seed);
Buffers CreateBuffers(const Network& network);

// Return the floating-point operations of one sample forward. A multiplication
// and an addition count as two. Convolutions, linear layers and attention are
// counted; other operations count as 0. Products with padding count, as is
// usual. Backward takes twice as many, except where no gradient is needed.
int64_t FlopsOf(const Network& network, int operation);
int64_t FlopsOf(const Network& network);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORK_H_
