#include "benchmarks/syncbn/layer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/uniform.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep::benchmarks {
namespace {

// Of x about the mean of its channel, and between the means of ranks.
constexpr double kDeviation = 1.5;
constexpr double kRankShift = 0.25;

AlignedBuffer BytesOf(int64_t bytes) {
  return AlignedBuffer((bytes + 3) / 4);  // Of four bytes each.
}

void Store(double value, int64_t i, const Buffer& to) {
  const auto rounded = static_cast<float>(value);
  if (to.type == DataType::kFloat16) {
    static_cast<Float16*>(to.data)[i] = ToFloat16(rounded);
  } else if (to.type == DataType::kBFloat16) {
    static_cast<BFloat16*>(to.data)[i] = ToBFloat16(rounded);
  } else {
    static_cast<float*>(to.data)[i] = rounded;
  }
}

int64_t ChannelOf(const ActivationShape& shape, int64_t i) {
  return shape.layout == Layout::kNhwc ? i % shape.c : i / shape.hw % shape.c;
}

// NaN in every type.
void SpoilMemory(AlignedBuffer& memory) {
  std::memset(memory.data(), 0xff, memory.span().size_bytes());
}

}  // namespace

BatchNormOptions OptionsOf(const LayerSpec& spec) {
  BatchNormOptions options;
  options.channels = spec.c;
  return options;
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
  const StatisticsRecord record = {.channels = spec.c,
                                   .type = DataType::kFloat32};
  saved_ = BytesOf(record.size_bytes());
}

absl::StatusOr<std::unique_ptr<SyncBnLayer>> SyncBnLayer::Create(
    const LayerSpec& spec, Communicator& group,
    std::unique_ptr<LayerMirror> mirror) {
  std::unique_ptr<SyncBnLayer> layer(
      new SyncBnLayer(spec, group, std::move(mirror)));
  if (layer->mirror_ != nullptr) {
    for (AlignedBuffer* memory : layer->AllMemory()) {
      LOCKSTEP_RETURN_IF_ERROR(layer->mirror_->Add(memory->span()));
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
    Store(0.25 * c + shift + kDeviation * x, i, Tensor(x_));
    // dy follows x, so that the sum of dy * x grows as their number does, and
    // what is wrong with it shows on large maps too.
    Store(0.02 * c + Uniform(dy_key, i) + 0.5 * x, i, Tensor(dy_));
  }
  for (int64_t c = 0; c < shape.c; ++c) {
    const auto i = static_cast<size_t>(c);
    weight_.span()[i] = 0.5f + 0.25f * static_cast<float>(c % 5);
    bias_.span()[i] = 0.5f * static_cast<float>(c % 3) - 0.5f;
  }
}

void SyncBnLayer::Spoil() {
  for (AlignedBuffer* memory : {&y_, &dx_, &dweight_, &dbias_, &saved_}) {
    SpoilMemory(*memory);
  }
  std::fill(mean_.span().begin(), mean_.span().end(), 0.0f);
  std::fill(variance_.span().begin(), variance_.span().end(), 1.0f);
  batches_ = 0;
}

Buffer SyncBnLayer::Tensor(AlignedBuffer& memory) const {
  return {memory.data(), spec_.shape().size(), spec_.type};
}

ConstBuffer SyncBnLayer::Tensor(const AlignedBuffer& memory) const {
  return {memory.span().data(), spec_.shape().size(), spec_.type};
}

Buffer SyncBnLayer::Placed(AlignedBuffer& memory, int64_t count,
                           DataType type) const {
  if (mirror_ == nullptr) return {memory.data(), count, type};
  return {mirror_->Of(memory.data()), count, type};
}

Buffer SyncBnLayer::PlacedTensor(AlignedBuffer& memory) const {
  return Placed(memory, spec_.shape().size(), spec_.type);
}

Buffer SyncBnLayer::PlacedChannels(AlignedBuffer& memory) const {
  return Placed(memory, spec_.c, DataType::kFloat32);
}

Buffer SyncBnLayer::PlacedRecord() {
  const StatisticsRecord record = {.channels = spec_.c,
                                   .type = DataType::kFloat32};
  return Placed(saved_, record.size_bytes(), DataType::kUInt8);
}

BatchNorm::Forwards SyncBnLayer::ForwardBuffers() {
  BatchNorm::Forwards buffers;
  buffers.shape = spec_.shape();
  buffers.x = PlacedTensor(x_);
  buffers.weight = PlacedChannels(weight_);
  buffers.bias = PlacedChannels(bias_);
  buffers.running = {.mean = PlacedChannels(mean_),
                     .variance = PlacedChannels(variance_),
                     .batches = &batches_};
  buffers.y = PlacedTensor(y_);
  buffers.saved = PlacedRecord();
  return buffers;
}

BatchNorm::Backwards SyncBnLayer::BackwardBuffers() {
  BatchNorm::Backwards buffers;
  buffers.shape = spec_.shape();
  buffers.x = PlacedTensor(x_);
  buffers.y = PlacedTensor(y_);
  buffers.dy = PlacedTensor(dy_);
  buffers.weight = PlacedChannels(weight_);
  buffers.saved = PlacedRecord();
  buffers.dweight = PlacedChannels(dweight_);
  buffers.dbias = PlacedChannels(dbias_);
  buffers.dx = PlacedTensor(dx_);
  return buffers;
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
  const BatchNorm::Forwards forwards = ForwardBuffers();
  const BatchNorm::Backwards backwards = BackwardBuffers();
  Spoil();
  if (mirror_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(mirror_->Upload());
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes forward, TimeCall(group_, timing, [&] {
                                return layer.Forward(forwards);
                              }));
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes backward, TimeCall(group_, timing, [&] {
                                return layer.Backward(backwards, [] {});
                              }));
    if (i < 0) continue;
    turn.forward.push_back(std::move(forward));
    turn.backward.push_back(std::move(backward));
  }
  if (mirror_ != nullptr) LOCKSTEP_RETURN_IF_ERROR(mirror_->Download());
  const LayerReference& reference = synchronised ? *synchronised_ : *local_;
  turn.wrong = reference.CountWrong(Inputs(), Outputs());
  return turn;
}

absl::StatusOr<RankTurn> TimeSubject(SyncBnLayer& layer,
                                     const LayerSubjects& subjects,
                                     const SyncBnRequest& request,
                                     CallTiming& timing) {
  switch (request.subject) {
    case SyncBnSubject::kLocal:
      return OrMissing(layer.Time(*subjects.local, false, request, timing));
    case SyncBnSubject::kOwnLocal:
      return layer.Time(*subjects.own_local, false, request, timing);
    case SyncBnSubject::kSync:
      return layer.Time(*subjects.sync, true, request, timing);
    default:
      return layer.Time(*subjects.split, true, request, timing);
  }
}

absl::StatusOr<CallTimes> TimeCall(Communicator& group, CallTiming& timing,
                                   const std::function<absl::Status()>& pass) {
  timing.call = CallTimes();
  LOCKSTEP_RETURN_IF_ERROR(group.Barrier());
  const double begin = timing.clock();
  LOCKSTEP_RETURN_IF_ERROR(pass());
  timing.call.end = timing.clock();
  timing.call.begin = begin;
  return std::move(timing.call);
}

}  // namespace lockstep::benchmarks
