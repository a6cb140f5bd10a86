// The mutants, as decorators of groups and models.
#include "conformance/network/network_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/decorators.h"
#include "conformance/mutant.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/network/resnet_reference.h"
#include "models/model.h"

namespace lockstep {
namespace {

constexpr int kNorms = 17;  // In the network.

bool IsNorm(const ParameterSpec& spec) {
  return absl::StrContains(spec.name, "bn") ||
         absl::StartsWith(spec.name, "1.");
}

// Splits `group` off from `inner` by other rules.
class SplitMutant : public ForwardingCommunicator {
 public:
  using SplitFunction =
      std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
          Communicator& inner, int key)>;

  SplitMutant(Communicator& inner, SplitFunction split)
      : ForwardingCommunicator(inner), split_(std::move(split)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int key,
                                                      CallSite) override {
    return split_(inner(), key);
  }

 private:
  SplitFunction split_;
};

NetworkMutation Splitting(SplitMutant::SplitFunction split) {
  NetworkMutation mutation;
  mutation.group = [split = std::move(split)](Communicator& inner,
                                              const NetworkRun&,
                                              std::span<const float>) {
    return std::make_unique<SplitMutant>(inner, split);
  };
  return mutation;
}

// Batch norm's group, whose calls of one layer go to nobody: that layer sees no
// other rank's records, and no other rank's sums.
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
  int forward_ = 0, backward_ = 0;  // Calls so far.
};

absl::StatusOr<std::unique_ptr<Communicator>> SplitForOneLayerAlone(
    Communicator& inner, int key) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                            inner.Split(/*color=*/0, key));
  // The stem's, two of each block of the first stage, then this one.
  return std::make_unique<OneLayerAlone>(std::move(group), /*layer=*/5);
}

absl::StatusOr<std::unique_ptr<Communicator>> SplitInHalves(Communicator& inner,
                                                            int key) {
  return inner.Split(/*color=*/2 * inner.rank() / inner.world_size(), key);
}

NetworkMutation BroadcastOnlyParameters() {
  NetworkMutation mutation;
  mutation.group = [](Communicator& inner, const NetworkRun&,
                      std::span<const float>) {
    return std::make_unique<BroadcastMutant>(
        inner, [](Communicator& group, Buffer data, int root) {
          if (data.type != DataType::kFloat32) return absl::OkStatus();
          return group.Broadcast(data, root);
        });
  };
  return mutation;
}

// All-reduces but leaves each rank its own gradients of batch norms.
NetworkMutation LeaveNormGradients() {
  NetworkMutation mutation;
  mutation.group = [](Communicator& inner, const NetworkRun&,
                      std::span<const float> gradients) {
    const auto sum = [gradients](Communicator& group, std::span<float> data) {
      const std::vector<float> own(data.begin(), data.end());
      LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
      const int64_t begin = data.data() - gradients.data();
      for (const ParameterSpec& spec : ResNetParameterSpecs()) {
        if (!IsNorm(spec) || spec.offset < begin) continue;
        if (spec.offset - begin >= static_cast<int64_t>(data.size())) continue;
        std::copy_n(own.begin() + (spec.offset - begin), spec.size,
                    data.begin() + (spec.offset - begin));
      }
      return absl::OkStatus();
    };
    return std::make_unique<AllReduceMutant>(inner, sum);
  };
  return mutation;
}

// The layer sums them over the ranks, and so does the trainer.
NormStep SumNormGradientsTwice(const NetworkRun&, int) {
  return [](Model& model, Communicator* group, const Batch& batch, float scale,
            Ready ready) -> absl::StatusOr<Metrics> {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                              model.ForwardBackward(batch, scale, [](int) {}));
    for (int i = 0; i < model.parameters().count(); ++i) {
      if (!IsNorm(model.parameters().specs()[i])) continue;
      LOCKSTEP_RETURN_IF_ERROR(
          group->AllReduce(model.parameters().gradient(i)));
    }
    ReadyAll(model, ready);
    return metrics;
  };
}

// As where activations are computed again for backward.
NormStep ForwardTwice(const NetworkRun&, int) {
  return [](Model& model, Communicator*, const Batch& batch, float scale,
            Ready ready) -> absl::StatusOr<Metrics> {
    LOCKSTEP_RETURN_IF_ERROR(
        model.ForwardBackward(batch, scale, [](int) {}).status());
    return model.ForwardBackward(batch, scale, ready);
  };
}

void InvertMomentum(int, std::span<const float> before, Buffers& buffers) {
  const std::span<float> running = buffers.floats();
  for (size_t i = 0; i < running.size(); ++i) {
    running[i] = before[i] + 9 * (running[i] - before[i]);
  }
}

void KeepBuffersOffRank0(int rank, std::span<const float> before,
                         Buffers& buffers) {
  if (rank == 0) return;
  std::copy(before.begin(), before.end(), buffers.floats().begin());
  for (int64_t& batches : buffers.counters()) --batches;
}

void CountTwice(int, std::span<const float>, Buffers& buffers) {
  for (int64_t& batches : buffers.counters()) ++batches;
}

NormStep MeanOfMeans(const NetworkRun& run, int rank) {
  const float scale =
      1.0f / static_cast<float>(run.world_size() * run.deal[rank]);
  return [scale](Model& model, Communicator*, const Batch& batch, float,
                 Ready ready) {
    return model.ForwardBackward(batch, scale, ready);
  };
}

NormStep DecayNorms(const NetworkRun&, int) {
  return [](Model& model, Communicator*, const Batch& batch, float scale,
            Ready ready) {
    Parameters& parameters = model.parameters();
    for (int i = 0; i < parameters.count(); ++i) {
      if (!IsNorm(parameters.specs()[i])) continue;
      for (float& v : parameters.value(i)) v *= 0.99f;
    }
    return model.ForwardBackward(batch, scale, ready);
  };
}

NormStep LeaveOutWhereEmpty(const NetworkRun&, int) {
  return [](Model& model, Communicator*, const Batch& batch, float scale,
            Ready ready) -> absl::StatusOr<Metrics> {
    if (!batch.labels.empty()) {
      return model.ForwardBackward(batch, scale, ready);
    }
    std::ranges::fill(model.parameters().gradients(), 0.0f);
    ReadyAll(model, ready);
    return Metrics();
  };
}

std::vector<Mutant> GroupMutants() {
  const NetworkRun two = {.deal = {4, 4}, .steps = 1};
  const NetworkRun four = {.deal = {2, 2, 2, 2}, .steps = 1};
  return {
      Planted(
          {"OneLayerLocal",
           "one batch norm layer was not converted",
           {"RanksAgree", "Buffers", "Gradients", "Loss"},
           "batch norms, resnet_block2.0.bn1 alone: not synchronised there?"},
          two, Splitting(SplitForOneLayerAlone)),
      Planted({"HalfGroups",
               "batch norm's group is half the ranks",
               {"RanksAgree", "Buffers", "Gradients", "Loss"},
               "ranks 0, 1 agree, ranks 2, 3 agree: groups of their own?"},
              four, Splitting(SplitInHalves)),
      Planted({"BuffersNotBroadcast",
               "every rank starts with running statistics of its own",
               {"SameStart", "RanksAgree"},
               "disagree on the running statistics: 1.running_mean[0] is"},
              two, BroadcastOnlyParameters()),
      Planted(
          {"NormGradientsNotReduced",
           "each rank keeps its own gradients of batch norm's weight and bias",
           {"RanksAgree", "Gradients"},
           "those of every batch norm differ, and no others: not reduced?"},
          two, LeaveNormGradients()),
  };
}

std::vector<Mutant> StepMutants() {
  const NetworkRun two = {.deal = {4, 4}, .steps = 1};
  const NetworkRun uneven = {.deal = {6, 2}, .steps = 1};
  return {
      Planted({"BuffersOnRank0Alone",
               "only rank 0 updates its running statistics",
               {"Buffers", "RanksAgree", "Counts"},
               "it is what it was before the step: not updated?"},
              two, ChangingBuffers(KeepBuffersOffRank0)),
      Planted(
          {"NormGradientsReducedTwice",
           "the layer sums the gradients of weight and bias that the trainer "
           "sums",
           {"Gradients"},
           "it is 2 times it, the world size: summed over the ranks twice?"},
          two, Stepping(SumNormGradientsTwice)),
      Planted(
          {"RunningUpdatedTwice",
           "forward runs twice, and both passes update the running statistics",
           {"Buffers", "Counts"},
           "the batch weighs 0.19 in it, not 0.1: updated twice?"},
          two, Stepping(ForwardTwice)),
      Planted({"CountedTwice",
               "num_batches_tracked counts forward and backward",
               {"Counts"},
               "num_batches_tracked of batch norm 0 on rank 0 goes up by 2"},
              two, ChangingBuffers(CountTwice)),
      Planted({"MomentumInverted",
               "momentum is the weight of the old statistics",
               {"Buffers"},
               "the batch weighs 0.9 in it, not 0.1: momentum inverted?"},
              two, ChangingBuffers(InvertMomentum)),
      Planted({"MeanOfMeans",
               "uneven shards' means are averaged without weights",
               {"Gradients"},
               "the mean of the ranks' means, without weights"},
              uneven, Stepping(MeanOfMeans)),
      Planted(
          {"NormsDecayed",
           "batch norm's weights and biases shrink in every step",
           {"Updates", "Buffers", "Gradients", "Loss"},
           "values of 1.weight shrink by 0.01 of themselves: weight decay?"},
          two, Stepping(DecayNorms)),
  };
}

// Of the first step.
absl::StatusOr<std::vector<Rounding>> MeasureFirst(
    const NetworkMutation& mutation) {
  LOCKSTEP_ASSIGN_OR_RETURN(const OneRankPath path,
                            TakeOneRankPath(/*steps=*/1, mutation));
  return path.rounding;
}

// Of the product without a mutation, once a process.
const absl::StatusOr<std::vector<Rounding>>& FirstRounding() {
  static const auto& rounding = *new absl::StatusOr<std::vector<Rounding>>(
      MeasureFirst(NetworkMutation()));
  return rounding;
}

}  // namespace

NetworkMutation SkipWhereEmpty() { return Stepping(LeaveOutWhereEmpty); }

Mutant Planted(Mutant mutant, const NetworkRun& run,
               const NetworkMutation& mutation, bool everywhere) {
  mutant.plant = [=, check = mutant.checks[0]]() -> absl::StatusOr<Caught> {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<Rounding> rounding,
        everywhere ? MeasureFirst(mutation) : FirstRounding());
    LOCKSTEP_ASSIGN_OR_RETURN(const NetworkTrace trace,
                              RunNetwork(run, mutation));
    const NetworkVerdicts verdicts = CheckNetwork(run, rounding, trace);
    Caught caught;
    for (const std::string name : kNetworkChecks) {
      const absl::Status& status = verdicts.checks.at(name);
      if (status.ok()) continue;
      if (status.code() != absl::StatusCode::kDataLoss) {
        return absl::InternalError(
            absl::StrCat(name, " failed: ", status.ToString()));
      }
      caught.checks.push_back(name);
      if (name == check) caught.diagnosis = std::string(status.message());
    }
    return caught;
  };
  return mutant;
}

MutantSuite NetworkMutants() {
  std::vector<Mutant> all = GroupMutants();
  for (const auto& some : {StepMutants(), ArithmeticMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return MakeSuite("network", kNetworkChecks, std::move(all));
}

}  // namespace lockstep
