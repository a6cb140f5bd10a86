#include "benchmarks/syncbn/rank.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/torch_peer_py.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/onednn_batch_norm.h"

namespace lockstep::benchmarks {

absl::StatusOr<RankTurn> TimePeer(TorchProcess& peer,
                                  const SyncBnRequest& request,
                                  absl::Time deadline,
                                  const std::string& where) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                            peer.Ask(PeerLine(request, where), deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn,
                            ParsePeerAnswer(request, answer, where));
  turn.note = peer.name();
  if (where.empty()) {
    absl::StrAppend(&turn.note,
                    "; its SyncBatchNorm on the CPU: ", peer.remark());
  }
  return turn;
}

std::string PeerLine(const SyncBnRequest& request, const std::string& where) {
  const LayerSpec& layer = request.layer;
  std::string gpu;
  if (!where.empty()) {
    const bool sync = request.subject == SyncBnSubject::kTorchSync;
    gpu = absl::StrCat(sync ? " sync " : " local ", where);
  }
  return absl::StrCat(layer.n, " ", layer.c, " ", layer.h, " ", layer.w, " ",
                      Name(layer.layout), " ", Name(layer.type), " ",
                      layer.seed, " ", request.warmup, " ", request.iterations,
                      gpu);
}

absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer,
                                         const std::string& where) {
  RankTurn turn;
  const std::pair<std::string, std::string> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (words.first == "cannot") {
    turn.missing = words.second;
    return turn;
  }
  const std::vector<std::string> numbers = absl::StrSplit(words.second, ' ');
  // On a GPU there is one pair for each lap.
  const size_t most = 2 * static_cast<size_t>(request.iterations);
  const bool enough = where.empty()
                          ? numbers.size() == most
                          : numbers.size() <= most && numbers.size() % 2 == 0;
  if (words.first != "timed" || !enough) return NotUnderstood(answer);
  for (size_t i = 0; i < numbers.size(); ++i) {
    double seconds = 0;
    if (!absl::SimpleAtod(numbers[i], &seconds) || !std::isfinite(seconds) ||
        seconds <= 0) {
      return NotUnderstood(answer);
    }
    (i % 2 == 0 ? turn.forward : turn.backward).push_back({.end = seconds});
  }
  return turn;
}

// Steps of a network.
namespace {

// Returns the number of elements of `a` whose bits differ in `b`.
int64_t CountDifferent(std::span<const float> a, std::span<const float> b) {
  int64_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return different;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SyncBnNetwork>> SyncBnNetwork::Create(
    Communicator& group, CallTiming& timing, const TrainedNetwork& trained,
    uint64_t seed, int64_t batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Network description,
                            DescribeTrained(trained));
  std::unique_ptr<SyncBnNetwork> network(
      new SyncBnNetwork(group, timing, batch));
  network->FillBatch(trained.input, seed);
  LOCKSTEP_ASSIGN_OR_RETURN(network->norm_group_, group.Split(0, group.rank()));
  network->timed_group_ =
      std::make_unique<TimedCommunicator>(*network->norm_group_, timing);
  for (Replica& replica : network->replicas_) {
    LOCKSTEP_ASSIGN_OR_RETURN(replica.model,
                              CreateCpuReplica(description, {.seed = seed}));
    LOCKSTEP_RETURN_IF_ERROR(
        PlaceGradientsInGroup(group, replica.model->parameters()).status());
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

void SyncBnNetwork::FillBatch(const NetworkInput& input, uint64_t seed) {
  const uint64_t key = UniformKey(seed, static_cast<uint64_t>(group_.rank()));
  images_.resize(static_cast<size_t>(batch_ * input.channels * input.height *
                                     input.width));
  labels_.resize(static_cast<size_t>(batch_));
  for (size_t i = 0; i < images_.size(); ++i) {
    images_[i] = static_cast<float>(Uniform(key, static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < labels_.size(); ++i) {
    labels_[i] = static_cast<int32_t>(static_cast<int64_t>(i) % input.classes);
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
  LOCKSTEP_ASSIGN_OR_RETURN(
      RankTurn turn,
      TimeCalls(request, group_, timing_, [&] { return Step(replica); }));
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

// Turns, by subject.
SyncBnRank::SyncBnRank(Communicator& group, const SyncBnRankOptions& options)
    : group_(group),
      options_(options),
      timed_kernels_(kernels_, timing_),
      timed_group_(group, timing_) {
  timing_.clock = SteadySeconds;
  SetComputeThreads(1);
}

absl::StatusOr<RankTurn> SyncBnRank::Take(const SyncBnRequest& request) {
  if (request.network != 0) return TimeNetwork(request);
  switch (request.subject) {
    case SyncBnSubject::kCopy:
      return TimeCopies(request);
    case SyncBnSubject::kTorch:
      if (!torch_.has_value()) torch_.emplace(group_, options_);
      return torch_->Take(request);
    case SyncBnSubject::kMessage:
      return TimeMessages(request);
    default:
      break;
  }
  LOCKSTEP_RETURN_IF_ERROR(UseLayer(request.layer));
  return subjects_.Time(*layer_, request, timing_);
}

absl::Status SyncBnRank::UseLayer(const LayerSpec& spec) {
  if (layer_ != nullptr && layer_->spec() == spec) return absl::OkStatus();
  layer_.reset();  // Its memory is freed first.
  const BatchNormOptions options = OptionsOf(spec);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> local,
                            OnednnBatchNorm::Create(options));
  LOCKSTEP_ASSIGN_OR_RETURN(
      subjects_, LayerSubjects::Create(options, std::move(local), kernels_,
                                       group_, timed_kernels_, timed_group_));
  LOCKSTEP_ASSIGN_OR_RETURN(layer_, SyncBnLayer::Create(spec, group_));
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnRank::TimeMessages(
    const SyncBnRequest& request) {
  std::vector<std::byte> records(
      static_cast<size_t>(RecordBytes(request.layer) * group_.world_size()));
  std::vector<float> sums(2 * static_cast<size_t>(request.layer.c));
  const MessagePasses passes =
      MessagesOf(request.layer, group_, Buffer(records), Buffer(sums));
  return TimeCalls(request, group_, timing_, passes.forward, passes.backward);
}

absl::StatusOr<RankTurn> SyncBnRank::TimeCopies(const SyncBnRequest& request) {
  // The copy goes from two tensors to two others. So it touches as much memory
  // as the layer has; copies within less memory may stay in a cache.
  LOCKSTEP_ASSIGN_OR_RETURN(
      Copier copier,
      Copier::Create(kCopiedTensors * request.layer.shape().size() *
                     SizeOf(request.layer.type)));
  copier.Prepare();
  LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn,
                            TimeCalls(request, group_, timing_, [&] {
                              copier.Copy();
                              return absl::OkStatus();
                            }));
  turn.wrong = copier.CountWrong();
  return turn;
}

absl::StatusOr<RankTurn> SyncBnTorch::Take(const SyncBnRequest& request,
                                           const std::string& where) {
  if (request.layer.layout == Layout::kNchw16c) {
    return Missing(absl::UnimplementedError("PyTorch has no layout nchw16c"));
  }
  const absl::Duration part = options_.timeout / 2;
  if (!peer_.has_value()) {
    peer_.emplace(TorchProcess::Start(options_.pythons, SyncBnPeerTorch(),
                                      absl::Now() + part));
  }
  LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
  if (peer_->ok()) {
    absl::StatusOr<RankTurn> turn =
        TimePeer(**peer_, request, absl::Now() + part, where);
    if (turn.ok()) return turn;
    peer_.emplace(turn.status());  // Every later turn reports the same reason.
  }
  return Missing(peer_->status());
}

absl::StatusOr<RankTurn> SyncBnRank::TimeNetwork(const SyncBnRequest& request) {
  if (network_ == nullptr) {
    layer_.reset();
    torch_.reset();  // The network uses the whole machine.
    LOCKSTEP_ASSIGN_OR_RETURN(
        network_, SyncBnNetwork::Create(group_, timing_, options_.network,
                                        request.layer.seed, request.layer.n));
  }
  return network_->Time(request);
}

absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options) {
  GroupOptions group_options = {.timeout = options.timeout};
  return RunAsRanks(kind, world_size, group_options, [&](Communicator& group) {
    SyncBnRank rank(group, options);
    return ServeTurns<SyncBnRequest>(
        listener, {group.rank(), group.world_size()},
        [&rank](const SyncBnRequest& request) { return rank.Take(request); });
  });
}

}  // namespace lockstep::benchmarks
