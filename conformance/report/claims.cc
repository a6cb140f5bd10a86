#include "conformance/report/claims.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

constexpr char kInAnyOrder[] =
    "element by element, what float32 can be off in any order of additions";
constexpr char kSpreads[] =
    "tensor by tensor, 16 times as far from float64 as plain loops in float32";

constexpr char kStorageSpreads[] =
    "tensor by tensor, 4 times as far from float64 as float64 loops that round "
    "activations to 16 bits";

constexpr char kNcclAsks[] =
    "every operation by every type, by NCCL's own calls and by the ring, whose "
    "bits are the CPU's, at 1, 2, 3 and 5 ranks; it passes or fails, and "
    "records no number";
constexpr char kOnGpu[] =
    "the same suite and mutants over NCCL, at 1, 2 and 3 ranks on the GPUs "
    "that there are";
constexpr char kOnGpus[] =
    "the same suite and mutants over NCCL, with a rank for each GPU";
constexpr char kNetworksOnGpu[] =
    "the same networks and deals, at 1 to 4 ranks that share a GPU";
constexpr char kTrainingOnGpu[] = "the same runs of one rank";
constexpr char kTrainingOnGpus[] =
    "the same runs of at most as many ranks as there are GPUs";
constexpr char kNormNcclAsks[] =
    "seven small batches against one float64 batch norm of the whole batch, at "
    "1 to 3 ranks; it passes or fails, and records no number";

constexpr char kGradients[] =
    "//conformance/training:gradient_equivalence_test";
constexpr char kGradientsGpu[] =
    "//conformance/training:gradient_equivalence_gpu_test";
constexpr char kGradientsGpus[] =
    "//conformance/training:gradient_equivalence_multigpu_test";
constexpr char kRecipe[] = "//conformance/training:training_equivalence_test";
constexpr char kBits[] = "//conformance/training:bitwise_training_test";
constexpr char kEvaluation[] =
    "//conformance/training:evaluation_equivalence_test";
constexpr char kHost[] = "//conformance/collectives:collectives_test";
constexpr char kStandin[] =
    "//conformance/collectives:collectives_nccl_standin_test";
constexpr char kCollectivesGpu[] =
    "//conformance/collectives:collectives_nccl_gpu_test";
constexpr char kCollectivesGpus[] =
    "//conformance/collectives:collectives_nccl_multigpu_test";
constexpr char kNccl[] = "//collectives/nccl:nccl_communicator_gpu_test";
constexpr char kLoading[] = "//conformance/loading:loading_test";
constexpr char kSampling[] = "//conformance/sampling:sampling_test";
constexpr char kNorm[] = "//conformance/syncbn:sync_batch_norm_test";
constexpr char kNormGroups[] =
    "//conformance/syncbn:sync_batch_norm_groups_test";
constexpr char kNormStandin[] =
    "//conformance/syncbn:sync_batch_norm_nccl_standin_test";
constexpr char kNormGpu[] =
    "//conformance/syncbn:sync_batch_norm_nccl_gpu_test";
constexpr char kNormGpus[] =
    "//conformance/syncbn:sync_batch_norm_nccl_multigpu_test";
constexpr char kNormNccl[] = "//syncbn/cuda:cuda_sync_batch_norm_gpu_test";
constexpr char kNetwork[] = "//conformance/network:network_equivalence_test";
constexpr char kNetworkCuda[] =
    "//conformance/network:cuda_network_standin_test";
constexpr char kNetworkGpu[] = "//conformance/network:cuda_network_gpu_test";

constexpr char kGpuTraining[] = "//conformance/cuda:gpu_training_standin_test";
constexpr char kGpuTrainingGpu[] = "//conformance/cuda:gpu_training_gpu_test";
constexpr char kGpuTrainingGpus[] =
    "//conformance/cuda:gpu_training_multigpu_test";

using Types = std::vector<std::string>;
using Sizes = std::vector<int>;

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostCases = std::numeric_limits<int64_t>::max();

bool IsIn(const nlohmann::json& value, int64_t low, int64_t high) {
  return value.is_number_integer() && low <= value.get<int64_t>() &&
         value.get<int64_t>() <= high;
}

}  // namespace

// Types and world sizes must match the tests' sources: the report fails if a
// test records others.
const std::vector<KnownClaim>& KnownClaims() {
  static const Types f32 = {"float32"}, indices = {"indices"};
  static const Types floats = {"float64", "float32", "float16", "bfloat16"};
  static const Types all = {"float64", "float32", "float16", "bfloat16",
                            "int32",   "int64",   "uint8"};
  static const Sizes with_four = {1, 2, 3, 4, 8}, with_five = {1, 2, 3, 5, 8};
  static const Sizes to_four = {1, 2, 3, 4};
  static const Sizes to_nine = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  static const auto& claims = *new std::vector<KnownClaim>{
      {"gradients",
       "LeNet's gradients in one step are one rank's on the global batch, "
       "however samples are dealt and whatever the buckets.",
       kInAnyOrder,
       {{"threads", kGradients, f32, with_four},
        {"processes", kGradients, f32, with_four},
        {"nccl stand-in, staged", kGradients, f32, {1, 2, 3}},
        {"nccl, staged, on a GPU", kGradientsGpu, {}, {}, kOnGpu},
        {"nccl, staged, on all GPUs", kGradientsGpus, {}, {}, kOnGpus}}},
      {"training_steps",
       "In two epochs of the trainer each gradient and each update is one "
       "rank's.",
       kInAnyOrder,
       {{"threads", kGradients, f32, with_four},
        {"processes", kGradients, f32, with_four},
        {"nccl stand-in, staged", kGradients, f32, {1, 2, 3}},
        {"nccl, staged, on a GPU", kGradientsGpu, {}, {}, kOnGpu},
        {"nccl, staged, on all GPUs", kGradientsGpus, {}, {}, kOnGpus}}},
      {"recipe_steps",
       "Each of a hundred steps on Fashion-MNIST leads where one rank's does.",
       "16 times what other orders of additions do, in 3 of 5 steps; in the "
       "others a quarter of what one sample weighs",
       {{"threads", kRecipe, f32, {2}}}},
      {"recipe_end",
       "A hundred steps on Fashion-MNIST end where one rank's do.",
       "16 times the furthest of five ranks that add in other orders",
       {{"threads", kRecipe, f32, {2}}}},
      {"gradient_sums",
       "Each gradient of a hundred steps is the sum of the ranks' own.",
       kNoError,
       {{"threads", kRecipe, f32, {2}}}},
      {"trained_bits",
       "Twenty steps of LeNet and ResNet-18 (in an ordinary run three, of one "
       "a quarter as wide) end with the same bits on every host backend, "
       "whatever the buckets.",
       kNoError,
       {{"threads", kBits, f32, {4}},
        {"processes", kBits, f32, {4}},
        {"mixed", kBits, f32, {4}},
        {"mpi", kBits, f32, {4}}}},
      {"evaluation",
       "Loss and accuracy are one rank's, also on sets that the ranks do not "
       "divide.",
       kNoError,
       {{"threads", kEvaluation, f32, with_four},
        {"processes", kEvaluation, f32, with_four},
        {"threads", kNetwork, f32, {2, 4}}}},
      {"collectives",
       "Every operation gives what the reference gives in the stated order of "
       "additions, and writes nothing beside it.",
       kNoError,
       {{"threads", kHost, all, with_five},
        {"processes", kHost, all, with_five},
        {"mixed", kHost, all, with_five},
        {"tcp", kHost, all, with_five},
        {"mpi", kHost, all, with_five},
        {"nccl stand-in", kStandin, all, with_five},
        {"nccl stand-in, staged", kStandin, all, {3}},
        {"nccl on a GPU", kCollectivesGpu, {}, {}, kOnGpu},
        {"nccl on all GPUs", kCollectivesGpus, {}, {}, kOnGpus},
        {"nccl", kNccl, {}, {}, kNcclAsks}}},
      {"epochs",
       "Each epoch deals to each rank what its semantics say.",
       kNoError,
       {{"torch sampler", kSampling, indices, to_nine},
        {"paddle sampler", kSampling, indices, to_nine},
        {"exact sampler", kSampling, indices, to_nine}}},
      {"resuming",
       "An epoch can be stopped after any step and gone on with at any world "
       "size, no sample drawn twice and none lost.",
       kNoError,
       {{"torch sampler", kSampling, indices, to_nine},
        {"paddle sampler", kSampling, indices, to_nine},
        {"exact sampler", kSampling, indices, to_nine}}},
      {"sample_pixels",
       "A sample has, in each epoch, the augmented pixels and the labels that "
       "one rank without workers gives it, in whatever batch and order.",
       kNoError,
       {{"loaders", kLoading, f32, to_four},
        {"trainer on threads", kLoading, f32, to_four}}},
      {"sync_batch_norm",
       "SyncBatchNorm over N ranks is batch norm over the whole batch: "
       "outputs, gradients and running statistics.",
       "element by element, what the type can be off in any order of "
       "additions, and its last rounding",
       {{"threads, CPU kernels", kNorm, floats, with_four},
        {"threads, plain kernels", kNorm, floats, {2}},
        {"processes, CPU kernels", kNormGroups, {"float32", "float64"}, {2}},
        {"processes, CPU kernels", kNormGroups, {"bfloat16"}, {3}},
        {"processes, CPU kernels", kNormGroups, {"float16"}, {4}},
        {"nccl stand-in, CUDA kernels",
         kNormStandin,
         {"float32", "float16", "bfloat16"},
         {1, 2}},
        {"nccl, CUDA kernels, on a GPU", kNormGpu, {}, {}, kOnGpu},
        {"nccl, CUDA kernels, on all GPUs", kNormGpus, {}, {}, kOnGpus},
        {"nccl, CUDA kernels", kNormNccl, {}, {}, kNormNcclAsks}}},
      {"sync_batch_norm_bits",
       "SyncBatchNorm gives the same bits on threads, processes and in every "
       "run.",
       kNoError,
       {{"threads and processes", kNormGroups, {"float32", "float64"}, {2}},
        {"threads and processes", kNormGroups, {"bfloat16"}, {3}},
        {"threads and processes", kNormGroups, {"float16"}, {4}}}},
      {"resnet_steps",
       "Each step of ResNet-18 (in an ordinary run a quarter as wide) with "
       "SyncBatchNorm is one rank's: gradients, running statistics and loss.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 3, 4}}}},
      {"torchvision_resnet_steps",
       "The same of torchvision's ResNet-18, 34 and 50, an eighth as wide.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 3, 4}}}},
      {"lenet_steps",
       "The same of LeNet, without batch norm and with SyncBatchNorm, and of a "
       "perceptron.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 3, 4}}}},
      {"gpu_steps",
       "The same of LeNet, a perceptron and the ResNets, when CUDA kernels and "
       "cuDNN compute the steps.",
       kSpreads,
       {{"threads, gpu stand-in", kNetworkCuda, f32, to_four},
        {"threads, gpu", kNetworkGpu, {}, {}, kNetworksOnGpu}}},
      {"gpu_narrow_steps",
       "The same of LeNet, ResNet-18 and a vision transformer, with "
       "activations "
       "in 16 bits, and parameters, gradients and sums in float32.",
       kStorageSpreads,
       {{"threads, gpu stand-in",
         kNetworkCuda,
         {"bfloat16", "float16"},
         to_four},
        {"threads, gpu", kNetworkGpu, {}, {}, kNetworksOnGpu}}},
      {"gpu_training",
       "Steps of LeNet and a vision transformer on GPUs, which sum their "
       "gradients beside the backward pass, are one rank's; LeNet's as graphs "
       "and without, in three orders of streams.",
       kSpreads,
       {{"nccl stand-in", kGpuTraining, f32, with_four},
        {"nccl, a GPU each", kGpuTrainingGpu, {}, {}, kTrainingOnGpu},
        {"nccl, a GPU each", kGpuTrainingGpus, {}, {}, kTrainingOnGpus}}},
      {"gpu_narrow_training",
       "The same of LeNet and a vision transformer with activations in 16 "
       "bits; all ranks skip a step that overflows.",
       kStorageSpreads,
       {{"nccl stand-in", kGpuTraining, {"bfloat16", "float16"}, {1, 2}},
        {"nccl, a GPU each", kGpuTrainingGpu, {}, {}, kTrainingOnGpu},
        {"nccl, a GPU each", kGpuTrainingGpus, {}, {}, kTrainingOnGpus}}},
      {"vit_steps",
       "Each step of a small vision transformer, with dropout of every kind, "
       "is one rank's: gradients and loss.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 3, 4}}}},
      {"local_batch_norm",
       "A step of each network with batch norm, but without SyncBatchNorm, is "
       "that of ranks that normalise their own shares: summed gradients and "
       "loss, and each rank's own running statistics.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 3, 4}}}},
      {"resnet_bits",
       "ResNet-18 (in an ordinary run a quarter as wide) with SyncBatchNorm "
       "ends a step with the bits of threads.",
       kNoError,
       {{"processes", kNetwork, f32, {2}}}},
      {"torchvision_resnet_bits",
       "The same of torchvision's ResNet-18, an eighth as wide.",
       kNoError,
       {{"processes", kNetwork, f32, {2}}}},
      {"vit_bits",
       "The same of a small vision transformer, with dropout of every kind.",
       kNoError,
       {{"processes", kNetwork, f32, {2}}}},
      {"resnet_trainer",
       "Each step of ResNet-18 through the trainer and its sampler (in an "
       "ordinary run a quarter as wide) is one rank's.",
       kSpreads,
       {{"threads", kNetwork, f32, {2, 4}}}},
  };
  return claims;
}

std::string FormatClaimResult(const ClaimResult& result) {
  nlohmann::ordered_json json = {{"claim", result.claim},
                                 {"backend", result.backend},
                                 {"world_size", result.world_size},
                                 {"type", result.type},
                                 {"cases", result.cases},
                                 {"error_over_allowed", nullptr},
                                 {"exact", result.exact}};
  if (std::isfinite(result.error_over_allowed)) {
    json["error_over_allowed"] = result.error_over_allowed;
  }
  return json.dump(-1, ' ', true,
                   nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<ClaimResult> ParseClaimResult(absl::string_view text) {
  const auto json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("a claim that is no JSON object");
  }
  ClaimResult result;
  const char* wrong = nullptr;
  const auto read = [&](const char* key, auto is_right, auto& value) {
    if (json.contains(key) && is_right(json[key])) {
      json[key].get_to(value);
    } else {
      wrong = key;
    }
  };
  const auto is_text = [](const auto& value) { return value.is_string(); };
  read("claim", is_text, result.claim);
  read("backend", is_text, result.backend);
  read("type", is_text, result.type);
  const auto is_size = [](const auto& v) { return IsIn(v, 1, kMostRanks); };
  read("world_size", is_size, result.world_size);
  const auto is_count = [](const auto& v) { return IsIn(v, 0, kMostCases); };
  read("cases", is_count, result.cases);
  // JSON has no infinity; null stands for it.
  result.error_over_allowed = std::numeric_limits<double>::infinity();
  if (!json.contains("error_over_allowed") ||
      !json["error_over_allowed"].is_null()) {
    const auto is_error = [](const auto& value) {
      return value.is_number() && value.template get<double>() >= 0;
    };
    read("error_over_allowed", is_error, result.error_over_allowed);
  }
  const auto is_bool = [](const auto& value) { return value.is_boolean(); };
  read("exact", is_bool, result.exact);
  if (wrong == nullptr) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("a claim whose \"", wrong, "\" is missing or wrong"));
}

}  // namespace lockstep::conformance
