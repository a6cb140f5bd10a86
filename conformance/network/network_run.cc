#include "conformance/network/network_run.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/reordered.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/network_inputs.h"
#include "models/reference/network_reference.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {
namespace {

// Returns a digest of the bits. A change of any one bit changes the digest.
uint64_t Digest(std::span<const float> values) {
  uint64_t digest = values.size();
  for (const float v : values) {
    digest = (std::rotl(digest, 29) ^ std::bit_cast<uint32_t>(v)) *
             0x9e3779b97f4a7c15u;
  }
  return digest;
}

// Returns the numbers of a global batch's samples.
std::span<const int64_t> SampleNumbers() {
  static const auto& numbers =
      *new std::vector<int64_t>(IdentityOf(kNetworkBatchSize));
  return numbers;
}

// Takes the steps with a prepared model. `full` may be null.
absl::StatusOr<std::vector<RankMoment>> TakeSteps(Model& model,
                                                  GradientReducer& reducer,
                                                  const NetworkRun& run,
                                                  int rank, RankTrace* full) {
  std::vector<RankMoment> moments;
  RecordMoment(*run.tested, model.parameters(), model.buffers(), -1, 0, moments,
               full);
  for (int step = 0; step < run.steps; ++step) {
    const Samples samples = run.tested->StepBatch(step);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepResult result,
        TrainStep(model, reducer, ShardOf(samples, run, rank, step),
                  kNetworkBatchSize, kNetworkLearningRate));
    RecordMoment(*run.tested, model.parameters(), model.buffers(), step,
                 result.metrics.loss_sum, moments, full);
  }
  return moments;
}

// Runs one rank's part of a run.
absl::StatusOr<std::vector<RankMoment>> TrainRank(Communicator& group,
                                                  const NetworkRun& run,
                                                  const Mutation& mutation,
                                                  RankTrace* full) {
  SetComputeThreads(1);
  const int rank = group.rank();
  const std::unique_ptr<Model> product =
      run.model ? run.model(run.tested->network()) : run.tested->CreateModel();
  Parameters& parameters = product->parameters();
  FillNetworkStart(*run.tested, rank, parameters, product->buffers());
  const RankContext context = {
      .rank = rank, .world_size = run.world_size(), .parameters = &parameters};
  std::unique_ptr<Communicator> mutant_group;
  if (mutation.communicator) {
    mutant_group = mutation.communicator(group, context);
  }
  Communicator& ranks = mutant_group ? *mutant_group : group;
  std::unique_ptr<Model> mutant_model;
  if (mutation.model) mutant_model = mutation.model(*product, context);
  Model& model = mutant_model ? *mutant_model : *product;
  LOCKSTEP_RETURN_IF_ERROR(BroadcastParameters(ranks, parameters));
  LOCKSTEP_RETURN_IF_ERROR(BroadcastBuffers(ranks, model.buffers()));
  GradientReducer reducer(ranks, parameters, run.bucket_bytes);
  std::unique_ptr<Communicator> norm_group;
  if (run.sync_bn && model.buffers().count() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(norm_group, SynchroniseBatchNorm(ranks, model));
  }
  return TakeSteps(model, reducer, run, rank, full);
}

// Passes the contents of moments to a RankBytesWriter or RankBytesReader.
template <typename Bytes, typename Moments>
void PassMoments(Bytes& bytes, Moments& moments) {
  for (auto& moment : moments) {
    bytes(moment.loss_sum);
    bytes(moment.parameters);
    bytes(moment.gradients);
    bytes(moment.running);
    bytes(moment.batches);
  }
}

}  // namespace

TestedNetwork::TestedNetwork(std::string spec, const NetworkInput& input,
                             std::vector<uint32_t> batch_seeds,
                             ConvolutionAlgorithm convolution)
    : spec_(std::move(spec)),
      input_(input),
      batch_seeds_(std::move(batch_seeds)),
      convolution_(convolution),
      network_(*CreateNetwork(spec_, input)),
      specs_(CreateParameters(network_).specs()),
      start_(Parameters(1)) {
  const Buffers buffers = CreateBuffers(network_);
  for (const BufferSpec& buffer : buffers.specs()) {
    if (buffer.type == DataType::kFloat32) buffer_specs_.push_back(buffer);
  }
}

std::string TestedNetwork::name() const {
  std::string name = spec_.substr(0, spec_.find(':'));
  std::erase(name, '_');
  if (is_winograd()) name += "Winograd";
  return name;
}

int TestedNetwork::IndexOf(const ParameterSpec& spec) const {
  return static_cast<int>(
      std::ranges::find(specs_, spec.name, &ParameterSpec::name) -
      specs_.begin());
}

bool TestedNetwork::IsNorm(const ParameterSpec& spec) const {
  return lockstep::IsNorm(network_, IndexOf(spec));
}

bool TestedNetwork::HasZeroGradient(const ParameterSpec& spec) const {
  return lockstep::HasZeroGradient(network_, IndexOf(spec));
}

std::unique_ptr<Model> TestedNetwork::CreateModel() const {
  return *CreateCpuReplica(network_, {.convolution = convolution_});
}

WinogradRule TestedNetwork::winograd_rule() const {
  if (LayoutOf(network_, DataType::kFloat32, convolution_) !=
      Layout::kNchw16c) {
    return nullptr;
  }
  return [algorithm = convolution_](const ConvolutionOp& op, const Shape& x,
                                    const Shape& y) {
    return IsWinograd(algorithm, op, x, y);
  };
}

std::vector<float> TestedNetwork::Parameters(uint32_t seed) const {
  return RandomParameters(network_, seed);
}

std::vector<float> TestedNetwork::Running(uint32_t seed) const {
  return RandomRunning(network_, seed);
}

Samples TestedNetwork::Batch(uint32_t seed, int64_t n) const {
  RandomSamples samples = RandomBatchOf(network_, seed, n);
  return {std::move(samples.images), std::move(samples.labels)};
}

Samples TestedNetwork::StepBatch(int step) const {
  return Batch(batch_seeds_[step], kNetworkBatchSize);
}

const TestedNetwork& TestedResNet() {
  static const auto& tested =
      IsExhaustive()
          ? *new TestedNetwork("resnet18_d2l", {1, 10, 10, 10}, {17, 89, 56})
          : *new TestedNetwork("resnet18_d2l:width=16", {1, 10, 10, 10},
                               {17, 49, 5});
  return tested;
}

const TestedNetwork* TestedWinogradResNet() {
  constexpr auto kWinograd = ConvolutionAlgorithm::kWinograd;
  static const auto* const tested =
      CheckConvolutionAlgorithm(kWinograd).ok()
          ? new TestedNetwork("resnet18_d2l:width=16", {1, 10, 10, 10}, {17, 1},
                              kWinograd)
          : nullptr;
  return tested;
}

const TestedNetwork& TestedVit() {
  static const auto& tested = *new TestedNetwork(
      "vit:patch=4,width=24,depth=2,heads=3,dropout=0.125,"
      "attention_dropout=0.125,drop_path=0.25",
      {3, 12, 8, 10}, {1, 2, 3});
  return tested;
}

const TestedNetwork& TestedFusedVit() {
  static const auto& tested = *new TestedNetwork(
      "vit:patch=4,width=24,depth=2,heads=3,dropout=0.125,drop_path=0.25",
      {3, 12, 8, 10}, {1, 2, 3});
  return tested;
}

const TestedNetwork& TestedTorchvisionResNet() {
  static const auto& tested =
      *new TestedNetwork("resnet18:width=8", {3, 33, 33, 10}, {1});
  return tested;
}

const TestedNetwork& TestedResNet50() {
  static const auto& tested =
      *new TestedNetwork("resnet50:width=8", {3, 33, 33, 10}, {1});
  return tested;
}

const std::vector<const TestedNetwork*>& AllTestedNetworks() {
  static const auto& all = *new std::vector<const TestedNetwork*>([] {
    std::vector<const TestedNetwork*> networks = {
        &TestedResNet(),
        &TestedVit(),
        &TestedTorchvisionResNet(),
        new TestedNetwork("lenet", {3, 20, 16, 10}, {1}),
        new TestedNetwork("lenet_bn", {3, 20, 16, 10}, {1}),
        new TestedNetwork("mlp:width=24", {3, 20, 16, 10}, {1}),
        new TestedNetwork("resnet34:width=8", {3, 33, 33, 10}, {1}),
        &TestedResNet50()};
    if (TestedWinogradResNet() != nullptr) {
      networks.push_back(TestedWinogradResNet());
    }
    return networks;
  }());
  return all;
}

KeepMask MaskOf(int step) { return MasksOf(kMaskSeed, step); }

std::string NetworkRun::name() const {
  return absl::StrCat(tested->name(), "P", world_size(), "Deal",
                      absl::StrJoin(deal, "x"));
}

void PrintTo(const NetworkRun& run, std::ostream* out) { *out << run.name(); }

const std::vector<NetworkDeal>& NetworkDeals() {
  static const auto& deals =
      *new std::vector<NetworkDeal>{{{4, 4}, {7, 1}, {0, 8}},
                                    {{3, 3, 2}, {1, 5, 2}, {3, 5, 0}},
                                    {{2, 2, 2, 2}, {1, 4, 1, 2}, {3, 0, 5, 0}}};
  return deals;
}

Batch ShardOf(const Samples& samples, const NetworkRun& run, int rank,
              int step) {
  const int64_t pixels = run.tested->network().input_shape().size();
  const auto first = run.deal.begin();
  const int64_t begin = std::accumulate(first, first + rank, int64_t{0});
  const int64_t count = run.deal[rank];
  return {.images =
              std::span(samples.images).subspan(begin * pixels, count * pixels),
          .labels = std::span(samples.labels).subspan(begin, count),
          .samples = SampleNumbers().subspan(begin, count),
          .seed = kMaskSeed,
          .step = step};
}

void FillNetworkStart(const TestedNetwork& tested, int rank,
                      Parameters& parameters, Buffers& buffers) {
  const std::vector<float>& start = tested.start();
  const std::vector<float> running =
      tested.Running(static_cast<uint32_t>(1 + rank));
  const std::span<float> values = parameters.values();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = start[i] * static_cast<float>(1 + rank);
  }
  std::copy(running.begin(), running.end(), buffers.floats().begin());
  for (int64_t& batches : buffers.counters()) batches = rank;
}

void RecordMoment(const TestedNetwork& tested, const Parameters& parameters,
                  const Buffers& buffers, int step, double loss_sum,
                  std::vector<RankMoment>& moments, RankTrace* full) {
  RankMoment& moment = moments.emplace_back();
  moment.loss_sum = loss_sum;
  for (int i = 0; i < parameters.count(); ++i) {
    moment.parameters.push_back(Digest(parameters.value(i)));
    moment.gradients.push_back(Digest(parameters.gradient(i)));
  }
  const auto floats = buffers.floats();
  const auto counters = buffers.counters();
  moment.running.assign(floats.begin(), floats.end());
  moment.batches.assign(counters.begin(), counters.end());
  if (full == nullptr) return;
  const auto values = parameters.values();
  const auto gradients = parameters.gradients();
  full->parameters.emplace_back(values.begin(), values.end());
  if (step < 0) return;
  full->gradients.emplace_back(gradients.begin(), gradients.end());
  full->samples.push_back(tested.StepBatch(step));
}

std::vector<absl::Status> RunNetworkRanks(const NetworkRun& run,
                                          const Mutation& mutation,
                                          NetworkTrace& trace) {
  const RankFunction train =
      [&](Communicator& group) -> absl::StatusOr<std::string> {
    RankTrace full;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<RankMoment> moments,
        TrainRank(group, run, mutation, group.rank() == 0 ? &full : nullptr));
    RankBytesWriter writer;
    PassMoments(writer, moments);
    writer(full.parameters);
    writer(full.gradients);
    return std::move(writer.bytes);
  };
  const auto results =
      run.ranks ? run.ranks(run.world_size(), train)
                : RunRanksCollect(Backend::kThreads, run.world_size(), train,
                                  {.group = {.timeout = run.timeout}});
  trace.ranks.resize(results.size());
  std::vector<absl::Status> statuses;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    statuses.push_back(results[rank].status());
    if (!results[rank].ok()) continue;
    RankBytesReader reader(*results[rank]);
    trace.ranks[rank].resize(static_cast<size_t>(run.steps) + 1);
    PassMoments(reader, trace.ranks[rank]);
    if (rank == 0) {
      reader(trace.first.parameters);
      reader(trace.first.gradients);
    }
    if (reader.too_short) {
      statuses.back() = absl::DataLossError("its trace is too short");
    }
  }
  for (int step = 0; step < run.steps; ++step) {
    trace.first.samples.push_back(run.tested->StepBatch(step));
  }
  return statuses;
}

absl::StatusOr<NetworkTrace> RunNetwork(const NetworkRun& run,
                                        const Mutation& mutation) {
  NetworkTrace trace;
  const std::vector<absl::Status> statuses =
      RunNetworkRanks(run, mutation, trace);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].ok()) continue;
    return absl::Status(statuses[rank].code(),
                        absl::StrCat("rank ", rank, ": ",
                                     std::string(statuses[rank].message())));
  }
  return trace;
}

std::string Fingerprint(std::span<const RankMoment> moments) {
  RankBytesWriter writer;
  PassMoments(writer, moments);
  return std::move(writer.bytes);
}

}  // namespace lockstep::conformance
