// From std::mt19937's own numbers, the same with every standard library.
#include "conformance/network/network_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/checks.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/rank_bytes.h"
#include "conformance/training_run.h"
#include "models/cpu/classifier.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"

namespace lockstep::conformance {
namespace {

// In [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

// Of mean 0 and variance 1.
double Centred(std::mt19937& random) {
  return std::sqrt(12.0) * (Uniform(random) - 0.5);
}

double Up(int64_t channel) { return channel % 2 == 0 ? 1 : -1; }

// What rank 0 starts with; as no rank changes it, computed once.
const std::vector<float>& StartParameters() {
  static const auto& parameters = *new std::vector<float>(NetworkParameters(1));
  return parameters;
}

// Of the bits; any one of them changes it.
uint64_t Digest(std::span<const float> values) {
  uint64_t digest = values.size();
  for (const float v : values) {
    digest = (std::rotl(digest, 29) ^ std::bit_cast<uint32_t>(v)) *
             0x9e3779b97f4a7c15u;
  }
  return digest;
}

Batch ShardOf(const Samples& samples, const NetworkRun& run, int rank) {
  constexpr int64_t kPixels = kNetworkSide * kNetworkSide;
  const auto first = run.deal.begin();
  const int64_t begin = std::accumulate(first, first + rank, int64_t{0});
  const int64_t count = run.deal[rank];
  return {std::span(samples.images).subspan(begin * kPixels, count * kPixels),
          std::span(samples.labels).subspan(begin, count)};
}

// Takes the steps with a model that is ready to; `full` may be null.
absl::StatusOr<std::vector<RankMoment>> TakeSteps(Model& model,
                                                  GradientReducer& reducer,
                                                  const NetworkRun& run,
                                                  int rank, RankTrace* full) {
  std::vector<RankMoment> moments;
  RecordMoment(model, -1, 0, moments, full);
  for (int step = 0; step < run.steps; ++step) {
    const Samples samples = NetworkStepBatch(step);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepResult result,
        TrainStep(model, reducer, ShardOf(samples, run, rank),
                  kNetworkBatchSize, kNetworkLearningRate));
    RecordMoment(model, step, result.metrics.loss_sum, moments, full);
  }
  return moments;
}

// One rank's part of a run.
absl::StatusOr<std::vector<RankMoment>> TrainRank(Communicator& group,
                                                  const NetworkRun& run,
                                                  const Mutation& mutation,
                                                  RankTrace* full) {
  SetComputeThreads(1);
  const int rank = group.rank();
  const std::unique_ptr<Model> resnet = CreateNetwork();
  FillNetworkStart(*resnet, rank);
  Parameters& parameters = resnet->parameters();
  const RankContext context = {.rank = rank,
                               .world_size = run.world_size(),
                               .gradients = parameters.gradients()};
  std::unique_ptr<Communicator> mutant_group;
  if (mutation.communicator) {
    mutant_group = mutation.communicator(group, context);
  }
  Communicator& ranks = mutant_group ? *mutant_group : group;
  std::unique_ptr<Model> mutant_model;
  if (mutation.model) mutant_model = mutation.model(*resnet, context);
  Model& model = mutant_model ? *mutant_model : *resnet;
  LOCKSTEP_RETURN_IF_ERROR(BroadcastParameters(ranks, parameters));
  LOCKSTEP_RETURN_IF_ERROR(BroadcastBuffers(ranks, model.buffers()));
  GradientReducer reducer(ranks, parameters, run.bucket_bytes);
  std::unique_ptr<Communicator> norm_group;
  if (run.sync_bn) {
    LOCKSTEP_ASSIGN_OR_RETURN(norm_group, SynchroniseBatchNorm(ranks, model));
  }
  return TakeSteps(model, reducer, run, rank, full);
}

// Passes what moments hold to a RankBytesWriter or RankBytesReader.
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

RunRanksOptions OptionsOf(const NetworkRun& run) {
  return {.group = {.timeout = run.timeout}, .deadline = absl::Seconds(200)};
}

}  // namespace

std::unique_ptr<Model> CreateNetwork() {
  return CreateResNet18(/*seed=*/0, kNetworkSide, NetworkWidth());
}

std::vector<float> NetworkParameters(uint32_t seed, int64_t width) {
  std::mt19937 random(seed);
  std::vector<float> out;
  std::vector<double> norm_weights;
  for (const ParameterSpec& spec : ResNetParameterSpecs(width)) {
    const bool matrix = spec.shape.size() > 1;
    const bool projection = absl::StrContains(spec.name, "conv3");
    const bool norm = IsNorm(spec);
    const bool weight = absl::EndsWith(spec.name, "weight");
    if (norm && weight) norm_weights.clear();
    // A shortcut is small beside what batch norm puts on top of it.
    const double scale = projection || spec.name == "fc.1.weight" ? 0.15 : 1;
    for (int64_t i = 0; i < spec.size; ++i) {
      double value = 0;
      if (matrix) {
        value = scale * Centred(random) *
                std::sqrt(static_cast<double>(spec.shape[0]) /
                          static_cast<double>(spec.size));
      } else if (norm && weight) {
        value = 0.5 + Uniform(random);
        norm_weights.push_back(value);
      } else if (norm) {
        value = Up(i) * (1.5 + Uniform(random)) * norm_weights[i];
      } else {
        value = 0.1 * Centred(random);
      }
      out.push_back(static_cast<float>(value));
    }
  }
  return out;
}

std::vector<float> NetworkRunning(uint32_t seed, int64_t width) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const ParameterSpec& spec : ResNetBufferSpecs(width)) {
    const bool mean = absl::EndsWith(spec.name, "mean");
    for (int64_t i = 0; i < spec.size; ++i) {
      out.push_back(static_cast<float>(mean ? 0.2 * Centred(random)
                                            : 0.5 + Uniform(random)));
    }
  }
  return out;
}

Samples NetworkBatch(uint32_t seed, int64_t n) {
  std::mt19937 random(seed);
  Samples samples;
  for (int64_t i = 0; i < n * kNetworkSide * kNetworkSide; ++i) {
    samples.images.push_back(static_cast<float>(random() >> 24) / 255.0f);
  }
  for (int64_t i = 0; i < n; ++i) {
    samples.labels.push_back(static_cast<int32_t>(random() % 10));
  }
  return samples;
}

Samples NetworkStepBatch(int step) {
  const uint32_t seeds[kNetworkSteps] = {17, 49,
                                         NetworkWidth() == kResNet ? 55u : 5u};
  return NetworkBatch(seeds[step], kNetworkBatchSize);
}

void FillNetworkStart(Model& model, int rank) {
  const std::vector<float>& start = StartParameters();
  const std::vector<float> running =
      NetworkRunning(static_cast<uint32_t>(1 + rank));
  const std::span<float> values = model.parameters().values();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = start[i] * static_cast<float>(1 + rank);
  }
  std::copy(running.begin(), running.end(), model.buffers().floats().begin());
  for (int64_t& batches : model.buffers().counters()) batches = rank;
}

void RecordMoment(Model& model, int step, double loss_sum,
                  std::vector<RankMoment>& moments, RankTrace* full) {
  const Parameters& parameters = model.parameters();
  RankMoment& moment = moments.emplace_back();
  moment.loss_sum = loss_sum;
  for (int i = 0; i < parameters.count(); ++i) {
    moment.parameters.push_back(Digest(parameters.value(i)));
    moment.gradients.push_back(Digest(parameters.gradient(i)));
  }
  const auto floats = model.buffers().floats();
  const auto counters = model.buffers().counters();
  moment.running.assign(floats.begin(), floats.end());
  moment.batches.assign(counters.begin(), counters.end());
  if (full == nullptr) return;
  const auto values = parameters.values();
  const auto gradients = parameters.gradients();
  full->parameters.emplace_back(values.begin(), values.end());
  if (step < 0) return;
  full->gradients.emplace_back(gradients.begin(), gradients.end());
  full->samples.push_back(NetworkStepBatch(step));
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
                                  OptionsOf(run));
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
    trace.first.samples.push_back(NetworkStepBatch(step));
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
