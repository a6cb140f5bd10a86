#include "benchmarks/syncbn/layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/statistics.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::benchmarks {
namespace {

// The spread of x about the mean of its channel, and the distance between the
// means of ranks.
constexpr double kDeviation = 1.5;
constexpr double kRankShift = 0.25;

AlignedBuffer BytesOf(int64_t bytes) {
  return AlignedBuffer((bytes + 3) / 4);  // Floats of four bytes.
}

void Store(double value, int64_t i, DataType type, void* to) {
  const auto rounded = static_cast<float>(value);
  if (type == DataType::kFloat16) {
    static_cast<Float16*>(to)[i] = ToFloat16(rounded);
  } else if (type == DataType::kBFloat16) {
    static_cast<BFloat16*>(to)[i] = ToBFloat16(rounded);
  } else {
    static_cast<float*>(to)[i] = rounded;
  }
}

// Returns the number of channels whose elements of one pixel lie side by side.
int64_t PeriodOf(const ActivationShape& shape) {
  switch (shape.layout) {
    case Layout::kNchw:
      return 1;
    case Layout::kNhwc:
      return shape.c;
    case Layout::kNchw16c:
      return kChannelBlock;
  }
  return 1;
}

int64_t ChannelOf(const ActivationShape& shape, int64_t i) {
  const int64_t period = PeriodOf(shape);
  const int64_t block = i / (shape.hw * period) % (shape.c / period);
  return block * period + i % period;
}

}  // namespace

absl::Status TimedKernels::Time(TimedKernel kernel,
                                absl::FunctionRef<absl::Status()> run) {
  const double begin = timing_.clock();
  const absl::Status status = run();
  AddSeconds(kernel, timing_.clock() - begin);
  return status;
}

absl::Status TimedCommunicator::Run(const Collective& call) {
  MessageTimes times = {.entered = timing_.clock(),
                        .bytes = call.input.size_bytes()};
  const absl::Status status = inner().Run(call);
  times.left = timing_.clock();
  timing_.call.messages.push_back(times);
  return status;
}

absl::StatusOr<CallTimes> TimeCall(Communicator& group, CallTiming& timing,
                                   absl::FunctionRef<absl::Status()> pass) {
  timing.call = CallTimes();
  LOCKSTEP_RETURN_IF_ERROR(group.Barrier());
  const double begin = timing.clock();
  LOCKSTEP_RETURN_IF_ERROR(pass());
  timing.call.end = timing.clock();
  timing.call.begin = begin;
  return std::move(timing.call);
}

absl::StatusOr<RankTurn> TimeCalls(const SyncBnRequest& request,
                                   Communicator& group, CallTiming& timing,
                                   const TimedPass& forward,
                                   const TimedPass& backward) {
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    for (const TimedPass* const pass : {&forward, &backward}) {
      if (*pass == nullptr) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(CallTimes call, TimeCall(group, timing, *pass));
      if (i < 0) continue;
      (pass == &forward ? turn.forward : turn.backward)
          .push_back(std::move(call));
    }
  }
  return turn;
}

int64_t RecordBytes(const LayerSpec& spec) {
  return RecordOf(spec.c, spec.type).size_bytes();
}

MessagePasses MessagesOf(const LayerSpec& layer, Communicator& messages,
                         Buffer records, Buffer sums) {
  const int64_t size = RecordBytes(layer);
  return {.forward =
              [&messages, size, records] {
                return messages.AllGather(
                    ConstBuffer(records).Part(messages.rank() * size, size),
                    records);
              },
          .backward = [&messages, sums] { return messages.AllReduce(sums); }};
}

BatchNormOptions OptionsOf(const LayerSpec& spec) {
  return {.channels = spec.c};
}

SyncBnLayer::SyncBnLayer(const LayerSpec& spec, Communicator& group,
                         std::unique_ptr<LayerMirror> mirror)
    : spec_(spec), group_(group), mirror_(std::move(mirror)) {
  const int64_t bytes = spec.shape().size() * SizeOf(spec.type);
  for (AlignedBuffer* tensor : {&x_, &dy_, &y_, &dx_}) *tensor = BytesOf(bytes);
  for (AlignedBuffer* values :
       {&weight_, &bias_, &dweight_, &dbias_, &mean_, &variance_}) {
    *values = AlignedBuffer(spec.c);
  }
  saved_ = BytesOf(RecordBytes(spec));
}

absl::StatusOr<std::unique_ptr<SyncBnLayer>> SyncBnLayer::Create(
    const LayerSpec& spec, Communicator& group,
    std::unique_ptr<LayerMirror> mirror) {
  std::unique_ptr<SyncBnLayer> layer(
      new SyncBnLayer(spec, group, std::move(mirror)));
  if (layer->mirror_ != nullptr) {
    for (AlignedBuffer* memory : layer->AllMemory()) {
      layer->mirror_->Add(memory->span());
    }
  }
  layer->FillInputs();
  const double epsilon = OptionsOf(spec).epsilon;
  LOCKSTEP_ASSIGN_OR_RETURN(
      layer->local_, LayerReference::Create(layer->Inputs(), epsilon, nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(
      layer->synchronised_,
      LayerReference::Create(layer->Inputs(), epsilon, &group));
  return layer;
}

std::array<AlignedBuffer*, 11> SyncBnLayer::AllMemory() {
  return {&x_,       &dy_,    &y_,    &dx_,       &weight_, &bias_,
          &dweight_, &dbias_, &mean_, &variance_, &saved_};
}

void SyncBnLayer::FillInputs() {
  const ActivationShape shape = spec_.shape();
  const auto rank = static_cast<uint64_t>(group_.rank());
  const uint64_t x_key = UniformKey(spec_.seed, 2 * rank);
  const uint64_t dy_key = UniformKey(spec_.seed, 2 * rank + 1);
  const double shift = kRankShift * static_cast<double>(rank % 8);
  for (int64_t i = 0; i < shape.size(); ++i) {
    const auto c = static_cast<double>(ChannelOf(shape, i) % 7);
    const double x = Uniform(x_key, i);
    Store(0.25 * c + shift + kDeviation * x, i, spec_.type, x_.data());
    // dy follows x, so that the sum of dy * x grows as their number does.
    // Errors in that sum then show on large maps too.
    Store(0.02 * c + Uniform(dy_key, i) + 0.5 * x, i, spec_.type, dy_.data());
  }
  for (int64_t c = 0; c < shape.c; ++c) {
    const auto i = static_cast<size_t>(c);
    weight_.span()[i] = 0.5f + 0.25f * static_cast<float>(c % 5);
    bias_.span()[i] = 0.5f * static_cast<float>(c % 3) - 0.5f;
  }
}

absl::Status SyncBnLayer::Prepare() {
  for (AlignedBuffer* memory : {&y_, &dx_, &dweight_, &dbias_, &saved_}) {
    std::memset(memory->data(), 0xff, memory->span().size_bytes());  // NaN.
  }
  std::fill(mean_.span().begin(), mean_.span().end(), 0.0f);
  std::fill(variance_.span().begin(), variance_.span().end(), 1.0f);
  batches_ = 0;
  return mirror_ == nullptr ? absl::OkStatus() : mirror_->Upload();
}

ConstBuffer SyncBnLayer::Tensor(const AlignedBuffer& memory) const {
  return {memory.span().data(), spec_.shape().size(), spec_.type};
}

Buffer SyncBnLayer::Placed(AlignedBuffer& memory, int64_t count, DataType type,
                           int set) const {
  if (mirror_ == nullptr) return {memory.data(), count, type};
  return {mirror_->Of(memory.data(), set), count, type};
}

Buffer SyncBnLayer::PlacedTensor(AlignedBuffer& memory, int set) const {
  return Placed(memory, spec_.shape().size(), spec_.type, set);
}

Buffer SyncBnLayer::PlacedChannels(AlignedBuffer& memory, int set) const {
  return Placed(memory, spec_.c, DataType::kFloat32, set);
}

absl::Status SyncBnLayer::Forward(BatchNorm& layer, int set) {
  return layer.Forward(
      {.shape = spec_.shape(),
       .x = PlacedTensor(x_, set),
       .residual = {},
       .weight = PlacedChannels(weight_, set),
       .bias = PlacedChannels(bias_, set),
       .running = {.mean = PlacedChannels(mean_, set),
                   .variance = PlacedChannels(variance_, set),
                   .batches = &batches_},
       .y = PlacedTensor(y_, set),
       .saved = Placed(saved_, RecordBytes(spec_), DataType::kUInt8, set)});
}

absl::Status SyncBnLayer::Backward(BatchNorm& layer, int set) {
  return layer.Backward(
      {.shape = spec_.shape(),
       .x = PlacedTensor(x_, set),
       .y = PlacedTensor(y_, set),
       .dy = PlacedTensor(dy_, set),
       .weight = PlacedChannels(weight_, set),
       .saved = Placed(saved_, RecordBytes(spec_), DataType::kUInt8, set),
       .dweight = PlacedChannels(dweight_, set),
       .dbias = PlacedChannels(dbias_, set),
       .dx = PlacedTensor(dx_, set),
       .dresidual = {}},
      [] {});
}

LayerInputs SyncBnLayer::Inputs() const {
  return {.shape = spec_.shape(),
          .x = Tensor(x_),
          .dy = Tensor(dy_),
          .weight = weight_.span(),
          .bias = bias_.span()};
}

LayerOutputs SyncBnLayer::Outputs() const {
  return {.y = Tensor(y_),
          .dx = Tensor(dx_),
          .dweight = dweight_.span(),
          .dbias = dbias_.span()};
}

absl::StatusOr<RankTurn> SyncBnLayer::Time(BatchNorm& layer, bool synchronised,
                                           const SyncBnRequest& request,
                                           CallTiming& timing) {
  LOCKSTEP_RETURN_IF_ERROR(Prepare());
  const auto forward = [&](int set) { return Forward(layer, set); };
  const auto backward = [&](int set) { return Backward(layer, set); };
  LOCKSTEP_ASSIGN_OR_RETURN(
      RankTurn turn,
      mirror_ != nullptr
          ? mirror_->Time(request, forward, backward)
          : TimeCalls(
                request, group_, timing, [&] { return forward(0); },
                [&] { return backward(0); }));
  LOCKSTEP_ASSIGN_OR_RETURN(
      turn.wrong,
      CountWrong(synchronised, mirror_ == nullptr ? 0 : mirror_->sets() - 1));
  return turn;
}

absl::StatusOr<int64_t> SyncBnLayer::CountWrong(bool synchronised, int set) {
  if (mirror_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(mirror_->Download(set));
  const LayerReference& reference = synchronised ? *synchronised_ : *local_;
  return reference.CountWrong(Inputs(), Outputs());
}

absl::StatusOr<LayerSubjects> LayerSubjects::Create(
    const BatchNormOptions& options, std::unique_ptr<BatchNorm> local,
    BatchNormKernels& kernels, Communicator& group,
    BatchNormKernels& timed_kernels, Communicator& timed_group) {
  LayerSubjects subjects;
  subjects.local = std::move(local);
  LOCKSTEP_ASSIGN_OR_RETURN(subjects.own_local,
                            SyncBatchNorm::CreateLocal(options, kernels));
  LOCKSTEP_ASSIGN_OR_RETURN(subjects.sync,
                            SyncBatchNorm::Create(options, kernels, group));
  LOCKSTEP_ASSIGN_OR_RETURN(
      subjects.split,
      SyncBatchNorm::Create(options, timed_kernels, timed_group));
  return subjects;
}

absl::StatusOr<RankTurn> LayerSubjects::Time(SyncBnLayer& layer,
                                             const SyncBnRequest& request,
                                             CallTiming& timing) const {
  switch (request.subject) {
    case SyncBnSubject::kLocal:
      return OrMissing(layer.Time(*local, false, request, timing));
    case SyncBnSubject::kOwnLocal:
      return layer.Time(*own_local, false, request, timing);
    case SyncBnSubject::kSync:
      return layer.Time(*sync, true, request, timing);
    default:
      return layer.Time(*split, true, request, timing);
  }
}

// Computes the references: two passes over the inputs, one over the outputs.
namespace {

constexpr double kUnit = 0x1p-24;  // The unit round-off of float32.

double Value(float x) { return x; }
double Value(Float16 x) { return ToFloat(x); }
double Value(BFloat16 x) { return ToFloat(x); }

// The unit round-off of a type, and its largest error below the normal numbers.
template <typename T>
constexpr double kRoundOff = 0x1p-24;
template <>
constexpr double kRoundOff<Float16> = 0x1p-11;
template <>
constexpr double kRoundOff<BFloat16> = 0x1p-8;
template <typename T>
constexpr double kSubnormalError = 0x1p-149;
template <>
constexpr double kSubnormalError<Float16> = 0x1p-25;

// Calls visit(channel, index of an element) for every element.
template <typename Visit>
void ForEachElement(const ActivationShape& shape, const Visit& visit) {
  const int64_t period = PeriodOf(shape);
  const int64_t blocks = shape.c / period;
  int64_t at = 0;
  for (int64_t plane = 0; plane < shape.n * blocks; ++plane) {
    const int64_t first = plane % blocks * period;
    for (int64_t i = 0; i < shape.hw; ++i) {
      for (int64_t c = first; c < first + period; ++c) visit(c, at++);
    }
  }
}

// Calls `run` with a value of the C++ type of `type`.
template <typename Run>
auto WithType(DataType type, const Run& run) {
  if (type == DataType::kBFloat16) return run(BFloat16());
  if (type == DataType::kFloat16) return run(Float16());
  return run(float());
}

absl::Status SumOverRanks(Communicator* group, std::vector<double>& sums) {
  if (group == nullptr) return absl::OkStatus();
  return group->AllReduce(std::span<double>(sums));
}

// Returns the sums of x by channel, then the number of values.
std::vector<double> FirstSums(const LayerInputs& inputs) {
  const auto channels = static_cast<size_t>(inputs.shape.c);
  std::vector<double> sums(channels + 1);
  WithType(inputs.x.type, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(inputs.x.data);
    ForEachElement(inputs.shape, [&](int64_t c, int64_t i) {
      sums[static_cast<size_t>(c)] += Value(x[i]);
    });
  });
  sums[channels] = static_cast<double>(inputs.shape.values_per_channel());
  return sums;
}

// Returns for each channel the sums of (x - mean)^2, dy, dy (x - mean), dy^2.
constexpr size_t kSecondSums = 4;
std::vector<double> SecondSums(const LayerInputs& inputs,
                               std::span<const double> means) {
  std::vector<double> sums(kSecondSums * static_cast<size_t>(inputs.shape.c));
  WithType(inputs.x.type, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(inputs.x.data);
    const auto* dy = static_cast<const decltype(type)*>(inputs.dy.data);
    ForEachElement(inputs.shape, [&](int64_t c, int64_t i) {
      const double deviation = Value(x[i]) - means[static_cast<size_t>(c)];
      const double gradient = Value(dy[i]);
      double* const to = &sums[kSecondSums * static_cast<size_t>(c)];
      to[0] += deviation * deviation;
      to[1] += gradient;
      to[2] += gradient * deviation;
      to[3] += gradient * gradient;
    });
  });
  return sums;
}

bool IsWrong(double value, double want, double tolerance) {
  return !(std::abs(value - want) <= tolerance);
}

}  // namespace

absl::StatusOr<LayerReference> LayerReference::Create(const LayerInputs& inputs,
                                                      double epsilon,
                                                      Communicator* group) {
  const auto channels = static_cast<size_t>(inputs.shape.c);
  std::vector<double> means = FirstSums(inputs);
  LOCKSTEP_RETURN_IF_ERROR(SumOverRanks(group, means));
  LayerReference reference;
  reference.values_ = means[channels];
  for (size_t c = 0; c < channels; ++c) means[c] /= reference.values_;
  const std::vector<double> own = SecondSums(inputs, means);
  std::vector<double> all = own;
  LOCKSTEP_RETURN_IF_ERROR(SumOverRanks(group, all));
  for (size_t c = 0; c < channels; ++c) {
    const double* const sums = &all[kSecondSums * c];
    const double variance = sums[0] / reference.values_;
    Channel channel;
    channel.mean = means[c];
    channel.inverse = 1 / std::sqrt(variance + epsilon);
    channel.rms_x = std::sqrt(variance + means[c] * means[c]);
    channel.mean_dy = sums[1] / reference.values_;
    channel.mean_dy_normalised = sums[2] * channel.inverse / reference.values_;
    channel.rms_dy = std::sqrt(sums[3] / reference.values_);
    channel.own_dy = own[kSecondSums * c + 1];
    channel.own_dy_normalised = own[kSecondSums * c + 2] * channel.inverse;
    reference.channels_.push_back(channel);
  }
  return reference;
}

template <typename T>
int64_t LayerReference::CountWrongElements(const LayerInputs& inputs,
                                           const LayerOutputs& outputs) const {
  const auto* x = static_cast<const T*>(inputs.x.data);
  const auto* dy = static_cast<const T*>(inputs.dy.data);
  const auto* y = static_cast<const T*>(outputs.y.data);
  const auto* dx = static_cast<const T*>(outputs.dx.data);
  const double k_u = (8 * std::sqrt(values_) + 16) * kUnit;
  int64_t wrong = 0;
  ForEachElement(inputs.shape, [&](int64_t at, int64_t i) {
    const auto c = static_cast<size_t>(at);
    const Channel& channel = channels_[c];
    const double weight = inputs.weight[c], bias = inputs.bias[c];
    const double normalised = (Value(x[i]) - channel.mean) * channel.inverse;
    const double spread = channel.rms_x * channel.inverse;
    const double want_y = normalised * weight + bias;
    const double scale = weight * channel.inverse;
    const double want_dx = scale * (Value(dy[i]) - channel.mean_dy -
                                    normalised * channel.mean_dy_normalised);
    const double size = std::abs(normalised);
    const double y_error =
        k_u * (std::abs(weight) * (spread + size) + std::abs(bias));
    const double dx_error =
        k_u * std::abs(scale) *
        (std::abs(Value(dy[i])) + channel.rms_dy * (1 + size) * (2 + spread));
    wrong +=
        IsWrong(Value(y[i]), want_y,
                y_error + kRoundOff<T> * std::abs(want_y) + kSubnormalError<T>);
    wrong += IsWrong(
        Value(dx[i]), want_dx,
        dx_error + kRoundOff<T> * std::abs(want_dx) + kSubnormalError<T>);
  });
  return wrong;
}

int64_t LayerReference::CountWrongGradients(const LayerOutputs& outputs) const {
  const double k_u = (8 * std::sqrt(values_) + 16) * kUnit;
  int64_t wrong = 0;
  for (size_t c = 0; c < channels_.size(); ++c) {
    const Channel& channel = channels_[c];
    const double size = k_u * values_ * channel.rms_dy;
    wrong += IsWrong(outputs.dbias[c], channel.own_dy, size);
    wrong += IsWrong(outputs.dweight[c], channel.own_dy_normalised,
                     4 * size * (1 + channel.rms_x * channel.inverse));
  }
  return wrong;
}

int64_t LayerReference::CountWrong(const LayerInputs& inputs,
                                   const LayerOutputs& outputs) const {
  return WithType(inputs.x.type,
                  [&](auto type) {
                    return CountWrongElements<decltype(type)>(inputs, outputs);
                  }) +
         CountWrongGradients(outputs);
}

}  // namespace lockstep::benchmarks
