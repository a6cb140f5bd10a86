#include "models/cpu/lane_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/vector_unit.h"
#include "collectives/communicator.h"
#include "models/cpu/cpu_model.h"
#include "models/cpu/lane_kernels.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

// The backward pass computes a first convolution again if its output takes at
// most this many products per value. That is faster than reading the output
// from memory.
constexpr int64_t kCheapProducts = 32;
// The number of channels that are computed at a time, together with the pool
// after them. They are a tile of ConvolveLanes, whose output and gradient stay
// in the cache.
constexpr int64_t kBlock = 5;

// One operation in the form that the kernels take.
struct Stage {
  std::variant<LaneConvolution, LanePool, LaneLinear> shape;
  int weight = kNoTensor;
  int bias = kNoTensor;
  bool relu = false;
  bool in_blocks =
      false;        // Computed in blocks, and again in the backward pass.
  int64_t out = 0;  // Lane groups of the output, or of one block of it.
};

bool Fits(const Network::Operation& operation) {
  if (const auto* op = std::get_if<ConvolutionOp>(&operation.kind)) {
    return (op->kernel == 3 || op->kernel == 5) && op->stride == 1 &&
           op->padding == 0 && op->bias != kNoTensor &&
           operation.output.c <= kMaxLaneChannels;
  }
  if (const auto* op = std::get_if<PoolOp>(&operation.kind)) {
    return !op->maximum && op->kernel == op->stride && op->padding == 0;
  }
  const auto* const op = std::get_if<LinearOp>(&operation.kind);
  return op != nullptr && !op->per_position && op->bias != kNoTensor;
}

// Returns the stage of an operation. y: the part of the operation's output that
// is used. x: the operation's input; is cut to the part that y depends on.
Stage StageOf(const Network::Operation& operation, const Shape& y, Shape& x) {
  Stage stage;
  stage.out = y.size();
  if (const auto* op = std::get_if<ConvolutionOp>(&operation.kind)) {
    x.h = y.h + op->kernel - 1;
    x.w = y.w + op->kernel - 1;
    stage.shape = LaneConvolution{x.c, x.h, x.w, y.c, op->kernel, op->relu};
    stage.weight = op->weight;
    stage.bias = op->bias;
    stage.relu = op->relu;
  } else if (const auto* pool = std::get_if<PoolOp>(&operation.kind)) {
    x.h = y.h * pool->kernel;
    x.w = y.w * pool->kernel;
    stage.shape = LanePool{y.c, y.h, y.w, pool->kernel};
  } else {
    const auto& linear = std::get<LinearOp>(operation.kind);
    const int64_t in = x.size();
    stage.shape = LaneLinear{in, y.c, linear.inputs_first ? y.c : 1,
                             linear.inputs_first ? 1 : in, linear.relu};
    stage.weight = linear.weight;
    stage.bias = linear.bias;
    stage.relu = linear.relu;
  }
  return stage;
}

class LaneReplica : public CpuReplica {
 public:
  LaneReplica(Network network, uint64_t seed)
      : CpuReplica(std::move(network), seed) {
    const std::vector<Network::Operation>& operations =
        CpuReplica::network().operations();
    stages_.resize(operations.size());
    Shape y = operations.back().output;
    for (size_t i = stages_.size(); i-- > 0;) {
      Shape x = i > 0 ? operations[i - 1].output : input_shape();
      stages_[i] = StageOf(operations[i], y, x);
      y = x;
    }
    used_input_ = y;
    const auto* const first = std::get_if<LaneConvolution>(&stages_[0].shape);
    if (first != nullptr && IsPool(1) &&
        first->in * first->kernel * first->kernel <= kCheapProducts) {
      stages_[0].in_blocks = true;
      stages_[0].out = std::min(kBlock, first->out) * PlaneOf(*first);
    }
  }

  absl::StatusOr<std::vector<std::string>> Algorithms(int64_t) override {
    return std::vector<std::string>(stages_.size(), "lanes");
  }
  Layout layout() const override { return Layout::kNhwc; }

  int ConvertSyncBatchNorm(Communicator&) override { return 0; }

  bool announces_gradients_at_end() const override { return true; }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckBatch(*this, batch));
    LOCKSTEP_RETURN_IF_ERROR(Arrange(batch));
    std::ranges::fill(parameters().gradients(), 0.0f);
    const auto sums = static_cast<int64_t>(parameters().gradients().size());
    std::fill_n(memory() + sums_, sums * (threads_ - 1), 0.0f);
    ForSlabs([&](int64_t slab, int thread) {
      Forward(batch, slab, thread);
      const std::span<float> logits = LogitsOf(slab, thread);
      metrics_[slab] = SoftmaxCrossEntropy(logits, PartOf(batch, slab),
                                           classes(), gradient_scale, logits);
      ToLanes(logits, classes(), DyOf(stages_.size() - 1, slab, thread));
      Backward(slab, thread);
    });
    for (int t = 1; t < threads_; ++t) {
      const float* const sum = GradientOf(0, t);
      const std::span<float> all = parameters().gradients();
      for (size_t k = 0; k < all.size(); ++k) all[k] += sum[k];
    }
    LinearDw();
    for (int i = parameters().count(); i-- > 0;) ready(i);
    return Total();
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckBatch(*this, batch));
    LOCKSTEP_RETURN_IF_ERROR(Arrange(batch));
    ForSlabs([&](int64_t slab, int thread) {
      Forward(batch, slab, thread);
      metrics_[slab] = SoftmaxCrossEntropy(
          LogitsOf(slab, thread), PartOf(batch, slab), classes(), 0, {});
    });
    return Total();
  }

 private:
  static int64_t PlaneOf(const LaneConvolution& shape) {
    return shape.rows() * shape.columns();
  }
  bool IsLinear(size_t stage) const {
    return stage < stages_.size() &&
           std::holds_alternative<LaneLinear>(stages_[stage].shape);
  }
  bool IsPool(size_t stage) const {
    return stage < stages_.size() &&
           std::holds_alternative<LanePool>(stages_[stage].shape);
  }

  // Plans the memory of a step. A slab's values and their gradients are needed
  // until the thread begins its next slab. Linear layers' inputs and the
  // gradients of their outputs are needed longer: the gradients of the weights
  // are computed after all slabs, so that each sum leaves the registers once.
  //
  // The memory holds: values, by thread or by slab; logits; two gradients by
  // thread, or gradients by slab; and for every thread except the first its sum
  // of the parameters' gradients.
  absl::Status Arrange(const Batch& batch) {
    n_ = static_cast<int64_t>(batch.labels.size());
    slabs_ = (n_ + kLanes - 1) / kLanes;  // The last one may hold zeros.
    threads_ = MaxParallelThreads();
    metrics_.resize(slabs_);
    int64_t size = 0;
    const auto take = [&](int64_t floats) {
      const int64_t at = size;
      size += (floats + kLanes - 1) / kLanes * kLanes;
      return at;
    };
    values_.clear();
    dys_.clear();
    largest_dy_ = 0;
    for (size_t i = 0; i <= stages_.size(); ++i) {
      values_.push_back(take(SizeOf(i) * (IsLinear(i) ? slabs_ : threads_)));
      dys_.push_back(IsLinear(i) ? take(SizeOf(i + 1) * slabs_) : 0);
      if (!IsLinear(i) && i < stages_.size()) {
        largest_dy_ = std::max(largest_dy_, SizeOf(i + 1));
      }
    }
    logits_ = take(kLanes * classes() * threads_);
    dys_of_threads_ = take(2 * largest_dy_ * threads_);
    const auto sums = static_cast<int64_t>(parameters().gradients().size());
    sums_ = take(sums * (threads_ - 1));
    return Reserve(n_, size * static_cast<int64_t>(sizeof(float)));
  }

  // Returns the floats of value i of a slab.
  int64_t SizeOf(size_t value) const {
    return kLanes * (value == 0 ? used_input_.size() : stages_[value - 1].out);
  }
  float* ValueOf(size_t value, int64_t slab, int thread) {
    return memory() + values_[value] +
           (IsLinear(value) ? slab : thread) * SizeOf(value);
  }
  // Returns the gradient of a stage's output.
  float* DyOf(size_t stage, int64_t slab, int thread) {
    if (IsLinear(stage)) {
      return memory() + dys_[stage] + slab * SizeOf(stage + 1);
    }
    return memory() + dys_of_threads_ +
           (2 * thread + static_cast<int64_t>(stage % 2)) * largest_dy_;
  }
  // Returns a thread's sum of the gradients of the parameter.
  float* GradientOf(int index, int thread) {
    if (thread == 0) return parameters().gradient(index).data();
    const auto all = static_cast<int64_t>(parameters().gradients().size());
    return memory() + sums_ + (thread - 1) * all +
           parameters().specs()[index].offset;
  }
  const float* WeightOf(const Stage& stage) {
    return parameters().value(stage.weight).data();
  }
  const float* BiasOf(const Stage& stage) {
    return parameters().value(stage.bias).data();
  }

  // Calls f(slab, thread) for every slab.
  template <typename F>
  void ForSlabs(const F& f) {
    ParallelFor(slabs_,
                slabs_ * static_cast<int64_t>(parameters().gradients().size()),
                [&](int64_t begin, int64_t end, int thread) {
                  for (int64_t s = begin; s < end; ++s) f(s, thread);
                });
  }
  // Returns the metrics of the batch.
  Metrics Total() const {
    Metrics total;
    for (const Metrics& metrics : metrics_) total += metrics;
    return total;
  }

  int64_t SamplesOf(int64_t slab) const {
    return std::min(kLanes, n_ - slab * kLanes);
  }
  // Returns the logits of a slab, [samples of the slab, classes].
  std::span<float> LogitsOf(int64_t slab, int thread) {
    return {memory() + logits_ + thread * kLanes * classes(),
            static_cast<size_t>(SamplesOf(slab) * classes())};
  }
  // Returns the labels of a slab.
  Batch PartOf(const Batch& batch, int64_t slab) const {
    const auto part = [&](auto all) {
      return all.empty() ? all
                         : all.subspan(slab * kLanes,
                                       static_cast<size_t>(SamplesOf(slab)));
    };
    return {.images = {},
            .labels = part(batch.labels),
            .other_labels = part(batch.other_labels),
            .shares = part(batch.shares)};
  }
  // Converts rows [samples, size] to lane groups, with zeros for missing
  // samples.
  static void ToLanes(std::span<const float> rows, int64_t size, float* lanes) {
    const int64_t samples = static_cast<int64_t>(rows.size()) / size;
    std::fill_n(lanes, size * kLanes, 0.0f);
    for (int64_t lane = 0; lane < samples; ++lane) {
      for (int64_t i = 0; i < size; ++i) {
        lanes[i * kLanes + lane] = rows[lane * size + i];
      }
    }
  }
  // Converts the used part of images [n, h, w, c] to [c, h, w] of lane groups.
  void ImagesToLanes(const float* images, int64_t slab, float* lanes) {
    const Shape& all = input_shape();
    const Shape& used = used_input_;
    const int64_t samples = SamplesOf(slab);
    if (samples < kLanes) std::fill_n(lanes, used.size() * kLanes, 0.0f);
    for (int64_t lane = 0; lane < samples; ++lane) {
      const float* const image = images + (slab * kLanes + lane) * all.size();
      float* to = lanes + lane;
      for (int64_t c = 0; c < used.c; ++c) {
        for (int64_t h = 0; h < used.h; ++h) {
          const float* const row = image + h * all.w * all.c + c;
          for (int64_t w = 0; w < used.w; ++w, to += kLanes)
            *to = row[w * all.c];
        }
      }
    }
  }

  void Forward(const Batch& batch, int64_t slab, int thread) {
    ImagesToLanes(batch.images.data(), slab, ValueOf(0, slab, thread));
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].in_blocks) {
        ForwardInBlocks(slab, thread);
        ++i;  // The pool is done too.
      } else {
        ForwardOf(i, slab, thread);
      }
    }
    const float* const y = ValueOf(stages_.size(), slab, thread);
    const std::span<float> logits = LogitsOf(slab, thread);
    for (size_t i = 0; i < logits.size(); ++i) {
      const auto sample = static_cast<int64_t>(i) / classes();
      logits[i] = y[static_cast<int64_t>(i) % classes() * kLanes + sample];
    }
  }

  void ForwardOf(size_t i, int64_t slab, int thread) {
    const Stage& stage = stages_[i];
    const OperationTimer timer = TimeForward(i, thread == 0);
    const float* const x = ValueOf(i, slab, thread);
    float* const y = ValueOf(i + 1, slab, thread);
    if (const auto* shape = std::get_if<LaneConvolution>(&stage.shape)) {
      ConvolveLanes(*shape, x, WeightOf(stage), BiasOf(stage), y);
    } else if (const auto* shape = std::get_if<LanePool>(&stage.shape)) {
      PoolLanes(*shape, x, y);
    } else {
      MultiplyLanes(std::get<LaneLinear>(stage.shape), x, WeightOf(stage),
                    BiasOf(stage), y);
    }
  }

  // Calls f(convolution, pool, first) with the first two stages' shapes cut to
  // a block of channels that begins at channel `first`.
  template <typename F>
  void ForChannelBlocks(const F& f) {
    auto convolution = std::get<LaneConvolution>(stages_[0].shape);
    auto pool = std::get<LanePool>(stages_[1].shape);
    const int64_t channels = convolution.out;
    for (int64_t first = 0; first < channels; first += kBlock) {
      convolution.out = pool.channels = std::min(kBlock, channels - first);
      f(convolution, pool, first);
    }
  }
  // Computes a block of channels of the first convolution's output, in value 1.
  void ConvolveBlock(const LaneConvolution& shape, int64_t first, int64_t slab,
                     int thread) {
    const int64_t filter = shape.in * shape.kernel * shape.kernel;
    ConvolveLanes(shape, ValueOf(0, slab, thread),
                  WeightOf(stages_[0]) + first * filter,
                  BiasOf(stages_[0]) + first, ValueOf(1, slab, thread));
  }

  void ForwardInBlocks(int64_t slab, int thread) {
    ForChannelBlocks([&](const LaneConvolution& convolution,
                         const LanePool& pool, int64_t first) {
      {
        const OperationTimer timer = TimeForward(0, thread == 0);
        ConvolveBlock(convolution, first, slab, thread);
      }
      const OperationTimer timer = TimeForward(1, thread == 0);
      PoolLanes(
          pool, ValueOf(1, slab, thread),
          ValueOf(2, slab, thread) + first * pool.rows * pool.columns * kLanes);
    });
  }

  // Requires the gradient of the last stage's output in its memory.
  void Backward(int64_t slab, int thread) {
    for (size_t i = stages_.size(); i-- > 0;) {
      if (i == 1 && stages_[0].in_blocks) return BackwardInBlocks(slab, thread);
      BackwardOf(i, slab, thread);
    }
  }

  void BackwardOf(size_t i, int64_t slab, int thread) {
    const Stage& stage = stages_[i];
    const OperationTimer timer = TimeBackward(i, thread == 0);
    const float* const x = ValueOf(i, slab, thread);
    float* const dy = DyOf(i, slab, thread);
    float* const dx = i > 0 ? DyOf(i - 1, slab, thread) : nullptr;
    if (stage.relu && !IsPool(i + 1)) {  // Else the pool applies it.
      ReluLanesDy(stage.out, ValueOf(i + 1, slab, thread), dy);
    }
    if (const auto* shape = std::get_if<LaneConvolution>(&stage.shape)) {
      ConvolveLanesDw(*shape, x, dy, GradientOf(stage.weight, thread),
                      GradientOf(stage.bias, thread));
      if (dx != nullptr) ConvolveLanesDx(*shape, dy, WeightOf(stage), dx);
    } else if (dx == nullptr) {
      return;
    } else if (const auto* shape = std::get_if<LanePool>(&stage.shape)) {
      PoolLanesDx(*shape, stages_[i - 1].relu ? x : nullptr, dy, dx);
    } else {
      MultiplyLanesDx(std::get<LaneLinear>(stage.shape), dy, WeightOf(stage),
                      dx);
    }
  }

  void BackwardInBlocks(int64_t slab, int thread) {
    const Stage& stage = stages_[0];
    ForChannelBlocks([&](const LaneConvolution& convolution,
                         const LanePool& pool, int64_t first) {
      const int64_t filter =
          convolution.in * convolution.kernel * convolution.kernel;
      float* const dy = DyOf(0, slab, thread);
      {
        const OperationTimer timer = TimeBackward(1, thread == 0);
        if (stage.relu) ConvolveBlock(convolution, first, slab, thread);
        PoolLanesDx(
            pool, stage.relu ? ValueOf(1, slab, thread) : nullptr,
            DyOf(1, slab, thread) + first * pool.rows * pool.columns * kLanes,
            dy);
      }
      const OperationTimer timer = TimeBackward(0, thread == 0);
      ConvolveLanesDw(convolution, ValueOf(0, slab, thread), dy,
                      GradientOf(stage.weight, thread) + first * filter,
                      GradientOf(stage.bias, thread) + first);
    });
  }

  // Computes the gradients of linear layers' parameters from all slabs.
  void LinearDw() {
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (!IsLinear(i)) continue;
      const OperationTimer timer = TimeBackward(i);
      const auto& shape = std::get<LaneLinear>(stages_[i].shape);
      ParallelFor(shape.in, shape.in * shape.out * slabs_,
                  [&](int64_t begin, int64_t end, int) {
                    MultiplyLanesDw(shape, slabs_, begin, end, ValueOf(i, 0, 0),
                                    DyOf(i, 0, 0),
                                    GradientOf(stages_[i].weight, 0),
                                    GradientOf(stages_[i].bias, 0));
                  });
    }
  }

  std::vector<Stage> stages_;
  Shape used_input_;  // The part of the input that the output depends on.
  // Members of the step that runs.
  int64_t n_ = 0, slabs_ = 0;
  int threads_ = 1;
  std::vector<Metrics> metrics_;  // [slabs].
  // Offsets in memory(): of values, of gradients of stages' outputs, and so on.
  std::vector<int64_t> values_, dys_;
  int64_t logits_ = 0, dys_of_threads_ = 0, sums_ = 0;
  int64_t largest_dy_ = 0;  // The floats of one of a thread's gradients.
};

}  // namespace

bool FitsLanes(const Network& network) {
  if (BestVectorUnit() != VectorUnit::kAvx512) return false;
  const std::vector<Network::Operation>& operations = network.operations();
  for (size_t i = 0; i < operations.size(); ++i) {
    const bool chained = operations[i].inputs.size() == 1 &&
                         operations[i].inputs[0] == static_cast<int>(i);
    if (!chained || !Fits(operations[i])) return false;
  }
  return !operations.empty() &&
         std::holds_alternative<LinearOp>(operations.back().kind);
}

std::unique_ptr<CpuReplica> CreateLaneReplica(Network network, uint64_t seed) {
  return std::make_unique<LaneReplica>(std::move(network), seed);
}

}  // namespace lockstep
