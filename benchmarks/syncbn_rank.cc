// Turns, by subject.
#include "benchmarks/syncbn_rank.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/copy_bandwidth.h"
#include "benchmarks/rank_service.h"
#include "benchmarks/steady_clock.h"
#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "collectives/host/run_on_threads.h"
#include "collectives/launch/join_launched_group.h"
#include "collectives/launch/rank_environment.h"
#include "models/compute_threads.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/onednn_batch_norm.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

absl::Status ServeRank(const std::string& listener, Communicator& group,
                       const SyncBnRankOptions& options) {
  SyncBnRank rank(group, options);
  return ServeSyncBnTurns(
      listener, group,
      [&rank](const SyncBnRequest& request) { return rank.Take(request); });
}

}  // namespace

SyncBnRank::SyncBnRank(Communicator& group, const SyncBnRankOptions& options)
    : group_(group),
      options_(options),
      timed_kernels_(kernels_, probe_),
      timed_group_(group, probe_) {
  probe_.clock = SteadySeconds;
  SetComputeThreads(1);
}

absl::StatusOr<RankTurn> SyncBnRank::Take(const SyncBnRequest& request) {
  if (request.network != 0) return TimeNetwork(request);
  switch (request.subject) {
    case SyncBnSubject::kCopy:
      return TimeCopies(request);
    case SyncBnSubject::kTorch:
      return TimePeer(request);
    case SyncBnSubject::kMessage:
      return TimeMessages(request);
    default:
      break;
  }
  return TimeLayer(request);
}

absl::StatusOr<RankTurn> SyncBnRank::TimeLayer(const SyncBnRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(UseLayer(request.layer));
  return TimeSubject(*layer_, subjects_, request, probe_);
}

absl::Status SyncBnRank::UseLayer(const LayerSpec& spec) {
  if (layer_ != nullptr && layer_->spec() == spec) return absl::OkStatus();
  layer_.reset();  // Its memory first.
  const BatchNormOptions options = OptionsOf(spec);
  LOCKSTEP_ASSIGN_OR_RETURN(subjects_.local, OnednnBatchNorm::Create(options));
  LOCKSTEP_ASSIGN_OR_RETURN(subjects_.own_local,
                            SyncBatchNorm::CreateLocal(options, kernels_));
  LOCKSTEP_ASSIGN_OR_RETURN(subjects_.sync,
                            SyncBatchNorm::Create(options, kernels_, group_));
  LOCKSTEP_ASSIGN_OR_RETURN(
      subjects_.split,
      SyncBatchNorm::Create(options, timed_kernels_, timed_group_));
  LOCKSTEP_ASSIGN_OR_RETURN(layer_, SyncBnLayer::Create(spec, group_));
  return absl::OkStatus();
}

absl::StatusOr<RankTurn> SyncBnRank::TimeMessages(
    const SyncBnRequest& request) {
  const StatisticsRecord record = {
      .channels = request.layer.c,
      .type = StatisticsTypeOf(request.layer.type)};
  const int64_t size = record.size_bytes();
  std::vector<std::byte> records(
      static_cast<size_t>(size * group_.world_size()));
  std::vector<float> sums(2 * static_cast<size_t>(request.layer.c));
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        CallTimes forward, TimeCall(group_, probe_, [&] {
          return group_.AllGather(
              ConstBuffer(records.data() + group_.rank() * size, size,
                          DataType::kUInt8),
              Buffer(records));
        }));
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes backward, TimeCall(group_, probe_, [&] {
                                return group_.AllReduce(Buffer(sums));
                              }));
    if (i < 0) continue;
    turn.forward.push_back(std::move(forward));
    turn.backward.push_back(std::move(backward));
  }
  return turn;
}

absl::StatusOr<RankTurn> SyncBnRank::TimeCopies(const SyncBnRequest& request) {
  // From two tensors to two: within as much memory as the layer has, since
  // copies within less may stay in a cache.
  LOCKSTEP_ASSIGN_OR_RETURN(
      Copier copier,
      Copier::Create(kCopiedTensors * request.layer.shape().size() *
                     SizeOf(request.layer.type)));
  copier.Prepare();
  RankTurn turn;
  for (int i = -request.warmup; i < request.iterations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes copy, TimeCall(group_, probe_, [&] {
                                copier.Copy();
                                return absl::OkStatus();
                              }));
    if (i >= 0) turn.forward.push_back(std::move(copy));
  }
  turn.wrong = copier.CountWrong();
  return turn;
}

absl::StatusOr<RankTurn> SyncBnRank::TimePeer(const SyncBnRequest& request) {
  const absl::Duration part = options_.timeout / 2;
  if (!peer_.has_value()) {
    peer_.emplace(SyncBnPeer::Start(options_.pythons, absl::Now() + part));
  }
  LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
  if (peer_->ok()) {
    absl::StatusOr<RankTurn> turn = (*peer_)->Time(request, absl::Now() + part);
    if (turn.ok()) return turn;
    peer_.emplace(turn.status());  // The same reason at every later turn.
  }
  return Missing(peer_->status());
}

absl::StatusOr<RankTurn> SyncBnRank::TimeNetwork(const SyncBnRequest& request) {
  if (network_ == nullptr) {
    layer_.reset();
    peer_.reset();  // The machine is the network's.
    LOCKSTEP_ASSIGN_OR_RETURN(
        network_, SyncBnNetwork::Create(group_, probe_, request.layer.seed,
                                        request.layer.n));
  }
  return network_->Time(request);
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinSyncBnRanks(
    const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a rank needs a launcher");
  }
  return JoinLaunchedGroup(*environment, options);
}

absl::Status ServeSyncBnTurns(
    const std::string& listener, Communicator& group,
    const std::function<absl::StatusOr<RankTurn>(const SyncBnRequest&)>& take) {
  const RankHello hello = {group.rank(), group.world_size()};
  return ServeMessages(
      listener, hello,
      [&](absl::string_view message) -> absl::StatusOr<std::string> {
        LOCKSTEP_ASSIGN_OR_RETURN(const SyncBnRequest request,
                                  ParseSyncBnRequest(message));
        LOCKSTEP_ASSIGN_OR_RETURN(const RankTurn turn, take(request));
        return Serialize(turn);
      });
}

absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options) {
  GroupOptions group_options;
  group_options.timeout = options.timeout;
  if (kind == RankKind::kThreads) {
    return RunOnThreads(world_size, group_options, [&](Communicator& group) {
      return ServeRank(listener, group, options);
    });
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                            JoinSyncBnRanks(group_options));
  return ServeRank(listener, *group, options);
}

}  // namespace lockstep
