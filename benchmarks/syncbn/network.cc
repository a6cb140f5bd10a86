#include "benchmarks/syncbn/network.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "benchmarks/harness/uniform.h"
#include "benchmarks/syncbn/layer.h"
#include "collectives/collective.h"
#include "models/model.h"
#include "models/networks/networks.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kModel[] = "resnet18";
constexpr int64_t kImageSize = 28 * 28;  // One channel.
constexpr int64_t kClasses = 10;

// Elements of `a` that are not the same bits in `b`.
int64_t CountDifferent(std::span<const float> a, std::span<const float> b) {
  int64_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return different;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SyncBnNetwork>> SyncBnNetwork::Create(
    Communicator& group, CallTiming& timing, uint64_t seed, int64_t batch) {
  std::unique_ptr<SyncBnNetwork> network(
      new SyncBnNetwork(group, timing, batch));
  network->FillBatch(seed);
  LOCKSTEP_ASSIGN_OR_RETURN(network->norm_group_, group.Split(0, group.rank()));
  network->timed_group_ =
      std::make_unique<TimedCommunicator>(*network->norm_group_, timing);
  for (Replica& replica : network->replicas_) {
    LOCKSTEP_ASSIGN_OR_RETURN(replica.model, CreateModel(kModel, seed));
    replica.reducer =
        std::make_unique<GradientReducer>(group, replica.model->parameters());
  }
  const auto model = [&](SyncBnSubject subject) -> Model& {
    return *network->replicas_[static_cast<size_t>(subject)].model;
  };
  model(SyncBnSubject::kSync).ConvertSyncBatchNorm(*network->norm_group_);
  model(SyncBnSubject::kSplit).ConvertSyncBatchNorm(*network->timed_group_);
  return network;
}

void SyncBnNetwork::FillBatch(uint64_t seed) {
  const uint64_t key = UniformKey(seed, static_cast<uint64_t>(group_.rank()));
  images_.resize(static_cast<size_t>(batch_ * kImageSize));
  labels_.resize(static_cast<size_t>(batch_));
  for (size_t i = 0; i < images_.size(); ++i) {
    images_[i] = static_cast<float>(Uniform(key, static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < labels_.size(); ++i) {
    labels_[i] = static_cast<int32_t>(i % kClasses);
  }
}

absl::Status SyncBnNetwork::Step(Replica& replica) {
  const auto global = static_cast<float>(batch_ * group_.world_size());
  GradientReducer& reducer = *replica.reducer;
  LOCKSTEP_RETURN_IF_ERROR(
      replica.model
          ->ForwardBackward({.images = images_, .labels = labels_}, 1 / global,
                            [&](int index) { reducer.MarkReady(index); })
          .status());
  replica.stepped = true;
  return reducer.Finish();
}

absl::StatusOr<RankTurn> SyncBnNetwork::Time(const SyncBnRequest& request) {
  Replica& replica = replicas_[static_cast<size_t>(request.subject)];
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes step, TimeCall(group_, timing_, [&] {
                                return Step(replica);
                              }));
    if (i >= 0) turn.forward.push_back(std::move(step));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(turn.wrong, CountWrong(replica));
  return turn;
}

absl::StatusOr<int64_t> SyncBnNetwork::CountWrong(const Replica& replica) {
  const std::span<const float> own =
      std::as_const(replica.model->parameters()).gradients();
  int64_t wrong = 0;
  for (const float gradient : own) wrong += !std::isfinite(gradient);
  std::vector<float> first(own.begin(), own.end());
  LOCKSTEP_RETURN_IF_ERROR(group_.Broadcast(std::span<float>(first), 0));
  wrong += CountDifferent(own, first);
  const Replica& sync = replicas_[static_cast<size_t>(SyncBnSubject::kSync)];
  const Replica& split = replicas_[static_cast<size_t>(SyncBnSubject::kSplit)];
  if (sync.stepped && split.stepped &&
      (&replica == &sync || &replica == &split)) {
    wrong +=
        CountDifferent(std::as_const(sync.model->parameters()).gradients(),
                       std::as_const(split.model->parameters()).gradients());
  }
  return wrong;
}

}  // namespace lockstep::benchmarks
