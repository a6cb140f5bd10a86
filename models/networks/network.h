// Networks as data: the operations, the tensors with their names and first
// values, and no memory, no device and no library. //models/cpu computes what
// is described here.
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

// What an operation does to its inputs, per sample. Tensors are named by their
// index in Network::parameters() or Network::buffers(); kNoTensor: there is
// none.
inline constexpr int kNoTensor = -1;

// 2-D convolution, a cross-correlation as PyTorch's conv2d, perhaps followed by
// ReLU: [c, h, w] -> [out_channels, h', w'], h' = (h + 2 padding - kernel) /
// stride + 1, w' alike. Weights [out_channels, c, kernel, kernel], bias
// [out_channels].
struct ConvolutionOp {
  int weight = kNoTensor;
  int bias = kNoTensor;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;  // Zeros on each side.
  bool relu = false;
};

// y = W x + b, perhaps followed by ReLU. Of a whole sample, whose features
// count in the order c, h, w (what PyTorch's flatten gives): [c, h, w] ->
// [out, 1, 1]; or of each position of it by itself: [c, h, w] -> [out, h, w].
struct LinearOp {
  int weight = kNoTensor;  // [out, in]; with inputs_first [in, out].
  int bias = kNoTensor;    // [out].
  bool inputs_first = false;
  bool per_position = false;
  bool relu = false;
};

// torch.nn.BatchNorm2d: y = (x - mean) / sqrt(variance + epsilon) * weight +
// bias, of the batch in training, then perhaps + the second input, then perhaps
// ReLU. Momentum 0.1.
struct BatchNormOp {
  int weight = kNoTensor;        // [c].
  int bias = kNoTensor;          // [c].
  int running_mean = kNoTensor;  // Buffers, each [c].
  int running_variance = kNoTensor;
  int batches = kNoTensor;  // The counter num_batches_tracked.
  double epsilon = 1e-5;
  bool relu = false;
};

// Pooling over windows; padding counts as minus infinity for the maximum, and
// is none for the average. Rows and columns left over at the end are dropped.
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

// x * Phi(x), with the normal distribution's Phi (torch.nn.GELU()).
struct GeluOp {};

// Multi-head self-attention of what a linear layer gave each position:
// [3 * c, h, w] -> [c, h, w]. The channels are query, key and value, and in
// each of them head by head: softmax(q k^T / sqrt(c / heads)) v.
struct AttentionOp {
  int64_t heads = 1;
  double dropout = 0;  // Of the softmax, in training.
  int layer = 0;       // Names the layer to the masks' generator.
};

// The patches of an image as a sequence that begins with the class token, with
// the position embedding added: [c, h, w] -> [c, h * w + 1, 1].
struct EmbedOp {
  int class_token = kNoTensor;  // [1, 1, c].
  int position = kNoTensor;     // [1, h * w + 1, c].
};

// The first position alone: [c, h, w] -> [c, 1, 1].
struct FirstPositionOp {};

// In training, zeroes each value with probability `rate` and divides the others
// by 1 - rate; else gives its input.
struct DropoutOp {
  double rate = 0;
  int layer = 0;
};

// The sum of two inputs. drop_path: the probability with which, in training,
// the second input is left out for a whole sample; else it is divided by one
// minus that (stochastic depth, Huang et al. 2016, as timm scales it).
struct AddOp {
  double drop_path = 0;
  int layer = 0;
};

using OperationKind =
    std::variant<ConvolutionOp, LinearOp, BatchNormOp, PoolOp,
                 GlobalAveragePoolOp, LayerNormOp, GeluOp, AttentionOp, EmbedOp,
                 FirstPositionOp, DropoutOp, AddOp>;

// A parameter or buffer: the name that the network's source gives it.
struct TensorDescription {
  std::string name;
  std::vector<int64_t> shape;
  bool counter = false;   // An int64 without a shape; else float32.
  float first_value = 0;  // Of all elements, before anything is drawn.

  // The number of elements: the product of the shape.
  int64_t size() const {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }
};

// One draw of a parameter's first values. Draws run in their order with one
// generator, and a later draw may overwrite an earlier one, as where PyTorch
// constructs a module and then initialises it again.
struct Draw {
  enum class Kind {
    kUniform,          // In [-scale, scale).
    kNormal,           // Standard deviation `scale`.
    kTruncatedNormal,  // The same, cut off at +-2 (not at 2 scale), as timm.
    kConstant,
  };
  int parameter = 0;
  Kind kind = Kind::kNormal;
  double scale = 0;
};

// Where a value comes from, while a network is put together.
struct Value {
  int index = 0;
  Shape shape;  // Of one sample.
};

// A network, put together operation by operation; afterwards read only. What
// does not fit is kept as the network's status, and later calls do nothing.
// Layers' tensors are named "<name>.weight", "<name>.bias" and so on unless
// said otherwise. Values: weights and biases are 0 and norms' weights 1 until
// draws are added.
class Network {
 public:
  // One operation. Its result is value number index + 1; the network's input is
  // value 0.
  struct Operation {
    std::string name;
    OperationKind kind;
    std::vector<int> inputs;  // Values; two for AddOp and perhaps BatchNormOp.
    Shape output;             // Of one sample: n = 1.
  };

  // input: of one sample.
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
  // relu(batch_norm(x) + shortcut).
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

  // Puts a parameter here in the order of parameters, before the layer that
  // uses it is added.
  void Declare(const std::string& name, std::vector<int64_t> shape);
  void DeclareBatchNorm(const std::string& name, int64_t channels);

  // Gives the weight and the bias of the layer that was added last other names.
  void Rename(const std::string& weight, const std::string& bias);

  void AddDraw(int parameter, Draw::Kind kind, double scale);
  // Draws by name; no such parameter is an error.
  void AddDraw(const std::string& parameter, Draw::Kind kind, double scale);
  // What PyTorch's Linear and Conv2d draw when they are constructed: weights
  // and then the bias, if any, uniform in +-1 / sqrt(fan in).
  void DrawAsTorchConstructs(const std::string& layer);
  // torch.nn.init.kaiming_normal_(mode="fan_out", nonlinearity="relu") of the
  // layer's weights.
  void DrawHeNormalFanOut(const std::string& layer);

  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return input_; }
  const std::vector<Operation>& operations() const { return operations_; }
  const std::vector<TensorDescription>& parameters() const {
    return parameters_;
  }
  const std::vector<TensorDescription>& buffers() const { return buffers_; }
  const std::vector<Draw>& draws() const { return draws_; }
  // Of one sample, as the last operation leaves it: [classes, 1, 1].
  const Shape& output_shape() const;
  // Returns the shape of one sample of that value.
  const Shape& ShapeOf(int value) const {
    return value == 0 ? input_ : operations_[value - 1].output;
  }
  int64_t classes() const { return output_shape().c; }
  // How many operations of this kind there are.
  template <typename Kind>
  int Count() const {
    int count = 0;
    for (const Operation& operation : operations_) {
      count += std::holds_alternative<Kind>(operation.kind) ? 1 : 0;
    }
    return count;
  }

  // kInvalidArgument, naming the network and the layer, if one did not fit.
  const absl::Status& status() const { return status_; }
  // Makes `fault` of the layer the status, unless there is one already.
  void Fail(absl::string_view layer, absl::string_view fault);

 private:
  Value Append(const std::string& name, OperationKind kind,
               std::vector<Value> inputs, const Shape& output);
  // The one of that name, if it was declared.
  int AddParameter(const std::string& name, std::vector<int64_t> shape,
                   float first_value = 0);
  int AddBuffer(const std::string& name, std::vector<int64_t> shape,
                bool counter, float first_value = 0);
  int FindParameter(absl::string_view name) const;  // kNoTensor: none.
  // Whether the kernel fits; if not, fails.
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

// The parameters and buffers of a network: zeroes and ones, or with their first
// values drawn as PyTorch would draw them after torch.manual_seed(seed).
Parameters CreateParameters(const Network& network);
Parameters CreateParameters(const Network& network, uint64_t seed);
Buffers CreateBuffers(const Network& network);

// Floating-point operations of one sample forward, a multiplication and an
// addition counting as two: those of convolutions, linear layers and attention.
// Products with padding count, as is usual. Backward takes twice as many, but
// for what no gradient is needed of.
int64_t FlopsOf(const Network& network, int operation);
int64_t FlopsOf(const Network& network);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_NETWORKS_NETWORK_H_
