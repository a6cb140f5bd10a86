#include "benchmarks/syncbn/rank.h"

#include <cmath>
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
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/copy_bandwidth.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/torch_peer_py.h"
#include "collectives/collective.h"
#include "models/cpu/classifier.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/onednn_batch_norm.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep::benchmarks {
namespace {

CallTimes TimesOf(double seconds) {
  CallTimes times;
  times.end = seconds;
  return times;
}

}  // namespace

absl::StatusOr<SyncBnPeer> SyncBnPeer::Start(
    const std::vector<std::string>& pythons, absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      TorchProcess process,
      TorchProcess::Start(pythons, SyncBnPeerTorch(), deadline));
  return SyncBnPeer(std::move(process));
}

SyncBnPeer::SyncBnPeer(TorchProcess process) : process_(std::move(process)) {
  const std::pair<std::string, std::string> ready =
      absl::StrSplit(process_.version(), absl::MaxSplits(' ', 1));
  name_ = absl::StrCat("PyTorch ", ready.first, " (", process_.python(),
                       "); its SyncBatchNorm on the CPU: ", ready.second);
}

absl::StatusOr<RankTurn> SyncBnPeer::Time(const SyncBnRequest& request,
                                          absl::Time deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                            process_.Ask(PeerLine(request), deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(RankTurn turn, ParsePeerAnswer(request, answer));
  turn.note = name_;
  return turn;
}

std::string PeerLine(const SyncBnRequest& request) {
  const LayerSpec& layer = request.layer;
  return absl::StrCat(layer.n, " ", layer.c, " ", layer.h, " ", layer.w, " ",
                      Name(layer.layout), " ", Name(layer.type), " ",
                      layer.seed, " ", request.warmup, " ", request.iterations);
}

absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer) {
  RankTurn turn;
  const std::pair<std::string, std::string> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  if (words.first == "cannot") {
    turn.missing = words.second;
    return turn;
  }
  const std::vector<std::string> numbers = absl::StrSplit(words.second, ' ');
  if (words.first != "timed" ||
      numbers.size() != 2 * static_cast<size_t>(request.iterations)) {
    return NotUnderstood(answer);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    double seconds = 0;
    if (!absl::SimpleAtod(numbers[i], &seconds) || !std::isfinite(seconds) ||
        seconds <= 0) {
      return NotUnderstood(answer);
    }
    (i % 2 == 0 ? turn.forward : turn.backward).push_back(TimesOf(seconds));
  }
  return turn;
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
  return TimeSubject(*layer_, subjects_, request, timing_);
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
        CallTimes forward, TimeCall(group_, timing_, [&] {
          return group_.AllGather(
              ConstBuffer(records.data() + group_.rank() * size, size,
                          DataType::kUInt8),
              Buffer(records));
        }));
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes backward,
                              TimeCall(group_, timing_, [&] {
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
    LOCKSTEP_ASSIGN_OR_RETURN(CallTimes copy, TimeCall(group_, timing_, [&] {
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
        network_, SyncBnNetwork::Create(group_, timing_, request.layer.seed,
                                        request.layer.n));
  }
  return network_->Time(request);
}

absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options) {
  GroupOptions group_options;
  group_options.timeout = options.timeout;
  return RunAsRanks(kind, world_size, group_options, [&](Communicator& group) {
    SyncBnRank rank(group, options);
    return ServeTurns<SyncBnRequest>(
        listener, {group.rank(), group.world_size()},
        [&rank](const SyncBnRequest& request) { return rank.Take(request); });
  });
}

}  // namespace lockstep::benchmarks
