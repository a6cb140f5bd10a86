// Mutants of batch norm across ranks, of reduction and of types, as decorators
// of groups and models. Also plants a network's mutants.
#include "conformance/network/network_mutants.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/network/architecture_mutants.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/training/mutants.h"
#include "conformance/training/run.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

constexpr int kNorms = 17;  // The number of batch norms in the network.

// Splits batch norm's group off in a wrong way.
class SplitMutant : public ForwardingCommunicator {
 public:
  using SplitFunction = absl::StatusOr<std::unique_ptr<Communicator>> (*)(
      Communicator& inner, int key);

  SplitMutant(Communicator& inner, SplitFunction split)
      : ForwardingCommunicator(inner), split_(split) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int key,
                                                      CallSite) override {
    return split_(inner(), key);
  }

 private:
  const SplitFunction split_;
};

Mutation Splitting(SplitMutant::SplitFunction split) {
  return {.communicator = [split](Communicator& inner, const RankContext&) {
    return std::make_unique<SplitMutant>(inner, split);
  }};
}

// Batch norm's group, without the calls of one layer. That layer sees no
// records and no sums of other ranks.
class OneLayerAlone : public ForwardingCommunicator {
 public:
  OneLayerAlone(std::unique_ptr<Communicator> group, int layer)
      : ForwardingCommunicator(*group),
        group_(std::move(group)),
        layer_(layer) {}

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kAllGather &&
        forward_++ % kNorms == layer_) {
      const int64_t record = call.input.count;
      for (int rank = 0; rank < world_size(); ++rank) {
        std::byte* const place = call.output.bytes() + rank * record;
        if (place != call.input.data) std::fill_n(place, record, std::byte{0});
      }
      return absl::OkStatus();
    }
    if (call.operation == Operation::kAllReduce &&
        kNorms - 1 - backward_++ % kNorms == layer_) {
      return absl::OkStatus();
    }
    return inner().Run(call);
  }

 private:
  const std::unique_ptr<Communicator> group_;
  const int layer_;
  int forward_ = 0, backward_ = 0;  // The number of calls so far.
};

absl::StatusOr<std::unique_ptr<Communicator>> SplitForOneLayerAlone(
    Communicator& inner, int key) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                            inner.Split(/*color=*/0, key));
  // The stem's batch norm and two of each block of the first stage come first.
  return std::make_unique<OneLayerAlone>(std::move(group), /*layer=*/5);
}

absl::StatusOr<std::unique_ptr<Communicator>> SplitInHalves(Communicator& inner,
                                                            int key) {
  return inner.Split(/*color=*/2 * inner.rank() / inner.world_size(), key);
}

absl::Status BroadcastOnlyParameters(Communicator& group,
                                     const Collective& call) {
  return call.operation == Operation::kBroadcast &&
                 call.output.type != DataType::kFloat32
             ? absl::OkStatus()
             : group.Run(call);
}

// Sums these gradients over the ranks in the layer, although the trainer sums
// them too.
absl::StatusOr<Metrics> SumNormGradientsTwice(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  Parameters& parameters = call.model.parameters();
  for (int i = 0; i < parameters.count(); ++i) {
    if (!TestedResNet().IsNorm(parameters.specs()[i])) continue;
    LOCKSTEP_RETURN_IF_ERROR(
        call.norm_group->AllReduce(parameters.gradient(i)));
  }
  call.MarkAllReady();
  return metrics;
}

// Runs forward twice, as if activations were computed again for backward.
absl::StatusOr<Metrics> ForwardTwice(const StepCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(call.RunWithoutReady().status());
  return call.Make();
}

absl::StatusOr<Metrics> InvertMomentum(const StepCall& call) {
  const std::span<float> running = call.model.buffers().floats();
  const std::vector<float> before(running.begin(), running.end());
  const auto metrics = call.Make();
  for (size_t i = 0; i < running.size(); ++i) {
    running[i] = before[i] + 9 * (running[i] - before[i]);
  }
  return metrics;
}

absl::StatusOr<Metrics> KeepBuffersOffRank0(const StepCall& call) {
  const std::span<float> running = call.model.buffers().floats();
  const std::vector<float> before(running.begin(), running.end());
  const auto metrics = call.Make();
  if (call.on.rank == 0) return metrics;
  std::ranges::copy(before, running.begin());
  for (int64_t& batches : call.model.buffers().counters()) --batches;
  return metrics;
}

absl::StatusOr<Metrics> CountTwice(const StepCall& call) {
  for (int64_t& batches : call.model.buffers().counters()) ++batches;
  return call.Make();
}

absl::StatusOr<Metrics> MeanOfMeans(const StepCall& call) {
  const float scale =
      1.0f / static_cast<float>(call.on.world_size * call.batch.labels.size());
  return call.model.ForwardBackward(call.batch, scale, call.ready);
}

absl::StatusOr<Metrics> DecayNorms(const StepCall& call) {
  Parameters& parameters = call.model.parameters();
  for (int i = 0; i < parameters.count(); ++i) {
    if (!TestedResNet().IsNorm(parameters.specs()[i])) continue;
    for (float& v : parameters.value(i)) v *= 0.99f;
  }
  return call.Make();
}

absl::StatusOr<Metrics> LeaveOutWhereEmpty(const StepCall& call) {
  if (!call.batch.labels.empty()) return call.Make();
  std::ranges::fill(call.model.parameters().gradients(), 0.0f);
  call.MarkAllReady();
  return Metrics();
}

// Rounds a value to bfloat16.
float RoundToBFloat16(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x8000u) &
                              0xffff0000u);
}

absl::StatusOr<Metrics> CoarsenBuffers(const StepCall& call) {
  const auto metrics = call.Make();
  for (float& value : call.model.buffers().floats())
    value = RoundToBFloat16(value);
  return metrics;
}

absl::StatusOr<Metrics> CoarsenLoss(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(Metrics metrics, call.Make());
  metrics.loss_sum = RoundToBFloat16(static_cast<float>(metrics.loss_sum));
  return metrics;
}

absl::StatusOr<Metrics> CoarsenGradients(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  for (float& value : call.model.parameters().gradients()) {
    value = RoundToBFloat16(value);
  }
  call.MarkAllReady();
  return metrics;
}

std::vector<Mutant> Mutants() {
  return {
      Planted(
          {"OneLayerLocal", "one batch norm layer was not converted",
           "RanksAgree, Buffers, Gradients, Loss",
           "batch norms, resnet_block2.0.bn1 alone: not synchronised there?"},
          {4, 4}, Splitting(SplitForOneLayerAlone)),
      Planted({"HalfGroups", "batch norm's group is half the ranks",
               "RanksAgree, Buffers, Gradients, Loss",
               "ranks 0, 1 agree, ranks 2, 3 agree: groups of their own?"},
              {2, 2, 2, 2}, Splitting(SplitInHalves)),
      Planted({"BuffersNotBroadcast",
               "every rank starts with running statistics of its own",
               "SameStart, RanksAgree",
               "disagree on the running statistics: 1.running_mean[0] is"},
              {4, 4}, Calling(BroadcastOnlyParameters)),
      Planted(
          {"NormGradientsNotReduced",
           "each rank keeps its own gradients of batch norm's weight and bias",
           "RanksAgree, Gradients",
           "those of every batch norm differ, and no others: not reduced?"},
          {4, 4},
          LeaveGradients(TestedResNet(),
                         [](const ParameterSpec& spec) {
                           return TestedResNet().IsNorm(spec);
                         })),
      Planted(
          {"BuffersOnRank0Alone", "only rank 0 updates its running statistics",
           "Buffers, RanksAgree, Counts",
           "it is what it was before the step: not updated?"},
          {4, 4}, Stepping(KeepBuffersOffRank0)),
      Planted(
          {"NormGradientsReducedTwice",
           "the layer sums the gradients of weight and bias that the trainer "
           "sums",
           "Gradients",
           "it is 2 times it, the world size: summed over the ranks twice?"},
          {4, 4}, Stepping(SumNormGradientsTwice)),
      Planted(
          {"RunningUpdatedTwice",
           "forward runs twice, and both passes update the running statistics",
           "Buffers, Counts",
           "the batch weighs 0.19 in it, not 0.1: updated twice?"},
          {4, 4}, Stepping(ForwardTwice)),
      Planted({"CountedTwice",
               "num_batches_tracked counts forward and backward", "Counts",
               "num_batches_tracked of batch norm 0 on rank 0 goes up by 2"},
              {4, 4}, Stepping(CountTwice)),
      Planted({"MomentumInverted",
               "momentum is the weight of the old statistics", "Buffers",
               "the batch weighs 0.9 in it, not 0.1: momentum inverted?"},
              {4, 4}, Stepping(InvertMomentum)),
      Planted(
          {"MeanOfMeans", "uneven shards' means are averaged without weights",
           "Gradients", "the mean of the ranks' means, without weights"},
          {6, 2}, Stepping(MeanOfMeans)),
      Planted({"NormsDecayed",
               "batch norm's weights and biases shrink in every step",
               "Updates, Buffers, Gradients, Loss",
               "values of 1.weight shrink by 0.01 of themselves: weight "
               "decay?"},
              {4, 4}, Stepping(DecayNorms)),
      Planted({"RunningInBFloat16",
               "running statistics are rounded to bfloat16", "Buffers",
               "its values are bfloat16's: in a coarser type than float32?"},
              {4, 4}, Stepping(CoarsenBuffers)),
      Planted({"LossInBFloat16", "the loss is rounded to bfloat16", "Loss",
               "the losses add up to"},
              {4, 4}, Stepping(CoarsenLoss)),
      Planted({"GradientsInBFloat16", "gradients are rounded to bfloat16",
               "Gradients",
               "its values are bfloat16's: in a coarser type than float32?"},
              {8, 0}, Stepping(CoarsenGradients)),
  };
}

}  // namespace

Mutation LeaveGradients(const TestedNetwork& tested,
                        const std::function<bool(const ParameterSpec&)>& of) {
  return {.communicator = [&tested, of](Communicator& inner,
                                        const RankContext& context) {
    const auto sum = [&tested, of, parameters = context.parameters](
                         Communicator& group, std::span<float> data) {
      const std::vector<float> own(data.begin(), data.end());
      LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
      const int64_t begin =
          data.data() - std::as_const(*parameters).gradients().data();
      for (const ParameterSpec& spec : tested.specs()) {
        if (!of(spec) || spec.offset < begin) continue;
        if (spec.offset - begin >= static_cast<int64_t>(data.size())) continue;
        std::copy_n(own.begin() + (spec.offset - begin), spec.size,
                    data.begin() + (spec.offset - begin));
      }
      return absl::OkStatus();
    };
    return std::make_unique<GroupMutant>(inner, SumBy(sum));
  }};
}

Mutant Planted(Mutant mutant, const std::vector<int64_t>& deal,
               const Mutation& mutation, const TestedNetwork& tested) {
  const NetworkRun run = {.deal = deal, .steps = 1, .tested = &tested};
  mutant.plant = [=, check = mutant.checks[0]]() -> absl::StatusOr<Caught> {
    LOCKSTEP_ASSIGN_OR_RETURN(const NetworkTrace trace,
                              RunNetwork(run, mutation));
    const auto verdicts = CheckNetwork(run, trace).checks;
    std::vector<std::pair<std::string, absl::Status>> in_order;
    for (const std::string name : kNetworkChecks) {
      in_order.emplace_back(name, verdicts.at(name));
    }
    return CaughtBy(in_order, check);
  };
  return mutant;
}

MutantSuite NetworkMutants() {
  std::vector<Mutant> mutants = Mutants();
  std::ranges::move(ArchitectureMutants(), std::back_inserter(mutants));
  return MakeSuite("network", kNetworkChecks, std::move(mutants));
}

Mutation SkipWhereEmpty() { return Stepping(LeaveOutWhereEmpty); }

}  // namespace lockstep::conformance
