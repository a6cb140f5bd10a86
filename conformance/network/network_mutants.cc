// The mutants, as decorators of groups and models.
#include <algorithm>
#include <bit>
#include <cmath>
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
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/training_run.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

constexpr int kNorms = 17;  // In the network.

// Splits batch norm's group off by other rules.
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

absl::Status BroadcastOnlyParameters(Communicator& group,
                                     const Collective& call) {
  return call.operation == Operation::kBroadcast &&
                 call.output.type != DataType::kFloat32
             ? absl::OkStatus()
             : group.Run(call);
}

// All-reduces but leaves each rank its own gradients of some parameters.
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

// The layer sums them over the ranks, and so does the trainer.
absl::StatusOr<Metrics> SumNormGradientsTwice(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  Parameters& parameters = call.model.parameters();
  for (int i = 0; i < parameters.count(); ++i) {
    if (!TestedResNet().IsNorm(parameters.specs()[i])) continue;
    LOCKSTEP_RETURN_IF_ERROR(
        call.norm_group->AllReduce(parameters.gradient(i)));
  }
  call.ReadyAll();
  return metrics;
}

// As where activations are computed again for backward.
absl::StatusOr<Metrics> ForwardTwice(const StepCall& call) {
  LOCKSTEP_RETURN_IF_ERROR(call.MakeUnready().status());
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
  call.ReadyAll();
  return Metrics();
}

// What bfloat16 makes of it.
float Coarse(float value) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x8000u) &
                              0xffff0000u);
}

absl::StatusOr<Metrics> CoarsenBuffers(const StepCall& call) {
  const auto metrics = call.Make();
  for (float& value : call.model.buffers().floats()) value = Coarse(value);
  return metrics;
}

absl::StatusOr<Metrics> CoarsenLoss(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(Metrics metrics, call.Make());
  metrics.loss_sum = Coarse(static_cast<float>(metrics.loss_sum));
  return metrics;
}

absl::StatusOr<Metrics> CoarsenGradients(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  for (float& value : call.model.parameters().gradients()) {
    value = Coarse(value);
  }
  call.ReadyAll();
  return metrics;
}

// The first block's attention of the vision transformer.
constexpr char kAttention[] = "blocks.0.attn";
constexpr int64_t kHeads = 3;
// The addition of the second block's input to what its attention gives.
constexpr char kShortcutSum[] = "blocks.1.add1";

// A parameter's part of values or gradients.
std::span<float> PartOf(Model& model, std::span<float> all,
                        const std::string& name) {
  for (const ParameterSpec& spec : model.parameters().specs()) {
    if (spec.name == name) return spec.Part(all);
  }
  return {};
}

// What no head gives to the projection behind it is as if it were not there.
absl::StatusOr<Metrics> LeaveHeadOut(const StepCall& call) {
  const std::string name = absl::StrCat(kAttention, ".proj.weight");
  Parameters& parameters = call.model.parameters();
  const std::span<float> weight = PartOf(call.model, parameters.values(), name);
  const std::vector<float> before(weight.begin(), weight.end());
  const auto width = static_cast<size_t>(
      std::lround(std::sqrt(static_cast<double>(weight.size()))));
  const auto is_last_heads = [width](size_t i) {
    return i % width >= width / kHeads * (kHeads - 1);
  };
  for (size_t i = 0; i < weight.size(); ++i) {
    if (is_last_heads(i)) weight[i] = 0;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  std::ranges::copy(before, weight.begin());
  const std::span<float> gradient =
      PartOf(call.model, parameters.gradients(), name);
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (is_last_heads(i)) gradient[i] = 0;
  }
  call.ReadyAll();
  return metrics;
}

// Queries that are sqrt(head size) times as large undo the scale.
absl::StatusOr<Metrics> LeaveScaleOut(const StepCall& call) {
  Parameters& parameters = call.model.parameters();
  const std::vector<float> before(parameters.values().begin(),
                                  parameters.values().end());
  const auto scale = [&](std::span<float> all) {
    for (const ParameterSpec& spec : parameters.specs()) {
      if (spec.name.find(".qkv.") == std::string::npos) continue;
      const double head_size = static_cast<double>(spec.shape[0]) / 3 / kHeads;
      for (float& v : spec.Part(all).first(spec.size / 3)) {
        v *= static_cast<float>(std::sqrt(head_size));
      }
    }
  };
  scale(parameters.values());
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  std::ranges::copy(before, parameters.values().begin());
  scale(parameters.gradients());
  call.ReadyAll();
  return metrics;
}

absl::StatusOr<Metrics> KeepPositions(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  std::ranges::fill(
      PartOf(call.model, call.model.parameters().gradients(), "pos_embed"),
      0.0f);
  call.ReadyAll();
  return metrics;
}

// Replaces the gradients by the reference's, which lack those that come over
// the shortcut of one block of the vision transformer.
absl::StatusOr<Metrics> AddShortcutOnce(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.MakeUnready());
  Parameters& parameters = call.model.parameters();
  if (!call.batch.labels.empty()) {
    const Network& network = TestedVit().network();
    const std::vector<double> values(parameters.values().begin(),
                                     parameters.values().end());
    const NetworkReference<double> pass(
        network, values, /*running=*/{}, call.batch, /*training=*/true,
        MaskOf(static_cast<int>(call.batch.step)));
    const auto sum = std::ranges::find(network.operations(), kShortcutSum,
                                       &Network::Operation::name);
    const Consumer shortcut = {
        static_cast<int>(sum - network.operations().begin()), /*input=*/0};
    const std::vector<double> scales(call.batch.labels.size(), call.scale);
    std::ranges::transform(pass.Gradient(scales, &shortcut),
                           parameters.gradients().begin(),
                           [](double v) { return static_cast<float>(v); });
  }
  call.ReadyAll();
  return metrics;
}

absl::StatusOr<Metrics> NumberSamplesByRank(const StepCall& call) {
  Batch batch = call.batch;
  batch.samples = {};
  return call.model.ForwardBackward(batch, call.scale, call.ready);
}

// Plants the mutation in one step of ranks dealt so.
Mutant Planted(Mutant mutant, const std::vector<int64_t>& deal,
               const Mutation& mutation,
               const TestedNetwork& tested = TestedResNet()) {
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
      Planted(
          {"HeadLeftOut", "an attention lacks its last head", "Gradients, Loss",
           "head 2 of blocks.0.attn has no gradient: left out?"},
          {4, 4}, Stepping(LeaveHeadOut), TestedVit()),
      Planted({"ScoresNotScaled",
               "attention's scores are not divided by the root of a head's "
               "size",
               "Gradients, Loss", "not divided by the root of a head's size?"},
              {4, 4}, Stepping(LeaveScaleOut), TestedVit()),
      Planted({"PositionsNotTrained", "the position embedding has no gradient",
               "Gradients", "it is zero: not trained?"},
              {4, 4}, Stepping(KeepPositions), TestedVit()),
      Planted({"LayerNormNotReduced",
               "each rank keeps its own gradients of a layer norm",
               "RanksAgree, Gradients",
               "those of blocks.1.norm1 differ, and no others: not reduced?"},
              {4, 4},
              LeaveGradients(TestedVit(),
                             [](const ParameterSpec& spec) {
                               return spec.name.find("blocks.1.norm1.") == 0;
                             }),
              TestedVit()),
      Planted({"ShortcutAddedOnce",
               "backward forgets the gradient that comes over a shortcut",
               "Gradients", "over the shortcut into blocks.1.add1 is missing"},
              {4, 4}, Stepping(AddShortcutOnce), TestedVit()),
      Planted({"MasksByRank", "random masks count a rank's samples from 0 on",
               "Gradients, Loss", "keyed by the rank's own numbers?"},
              {4, 4}, Stepping(NumberSamplesByRank), TestedVit()),
  };
}

}  // namespace

MutantSuite NetworkMutants() {
  return MakeSuite("network", kNetworkChecks, Mutants());
}

Mutation SkipWhereEmpty() { return Stepping(LeaveOutWhereEmpty); }

}  // namespace lockstep::conformance
