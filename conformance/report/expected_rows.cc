// The table of rows. Types and world sizes are those of the tests' sources;
// the report fails where a test records others.
#include "conformance/report/expected_rows.h"

#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr char kNcclAsks[] =
    "every operation by every type, by NCCL's own calls and by the ring, whose "
    "bits are the CPU's, at 1, 2, 3 and 5 ranks; it passes or fails, and "
    "records no number";
constexpr char kNormNcclAsks[] =
    "seven small batches against one float64 batch norm of the whole batch, at "
    "1 to 3 ranks; it passes or fails, and records no number";

constexpr char kGradients[] = "//conformance:gradient_equivalence_test";
constexpr char kRecipe[] = "//conformance:training_equivalence_test";
constexpr char kBits[] = "//conformance:bitwise_training_test";
constexpr char kBitsMpi[] = "//conformance:bitwise_training_mpi_test";
constexpr char kEvaluation[] = "//conformance:evaluation_equivalence_test";
constexpr char kHost[] = "//conformance/collectives:collectives_test";
constexpr char kMpi[] = "//conformance/collectives:collectives_mpi_test";
constexpr char kStandin[] =
    "//conformance/collectives:collectives_nccl_standin_test";
constexpr char kNccl[] = "//collectives/nccl:nccl_communicator_gpu_test";
constexpr char kSampling[] = "//conformance/sampling:sampling_test";
constexpr char kResume[] = "//conformance/sampling:resume_test";
constexpr char kNorm[] = "//conformance/syncbn:sync_batch_norm_test";
constexpr char kNormGroups[] =
    "//conformance/syncbn:sync_batch_norm_groups_test";
constexpr char kNormStandin[] =
    "//conformance/syncbn:sync_batch_norm_nccl_standin_test";
constexpr char kNormNccl[] = "//syncbn/cuda:cuda_sync_batch_norm_gpu_test";
constexpr char kNetwork[] = "//conformance/network:network_equivalence_test";
constexpr char kTrainer[] = "//conformance/network:network_trainer_test";

using Types = std::vector<std::string>;
using Sizes = std::vector<int>;

}  // namespace

const std::vector<ExpectedRow>& ExpectedRows() {
  static const Types f32 = {"float32"}, indices = {"indices"};
  static const Types floats = {"float64", "float32", "float16", "bfloat16"};
  static const Types all = {"float64", "float32", "float16", "bfloat16",
                            "int32",   "int64",   "uint8"};
  static const Sizes with_four = {1, 2, 3, 4, 8}, with_five = {1, 2, 3, 5, 8};
  static const Sizes to_nine = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  static const auto& rows = *new std::vector<ExpectedRow>{
      {"gradients", "threads", kGradients, f32, with_four},
      {"gradients", "processes", kGradients, f32, with_four},
      {"training_steps", "threads", kGradients, f32, with_four},
      {"training_steps", "processes", kGradients, f32, with_four},
      {"recipe_steps", "threads", kRecipe, f32, {2}},
      {"recipe_end", "threads", kRecipe, f32, {2}},
      {"gradient_sums", "threads", kRecipe, f32, {2}},
      {"trained_bits", "threads", kBits, f32, {4}},
      {"trained_bits", "processes", kBits, f32, {4}},
      {"trained_bits", "mixed", kBits, f32, {4}},
      {"trained_bits", "mpi", kBitsMpi, f32, {4}},
      {"evaluation", "threads", kEvaluation, f32, with_four},
      {"evaluation", "processes", kEvaluation, f32, with_four},
      {"evaluation", "threads", kTrainer, f32, {2, 4}},
      {"collectives", "threads", kHost, all, with_five},
      {"collectives", "processes", kHost, all, with_five},
      {"collectives", "mixed", kHost, all, with_five},
      {"collectives", "mpi", kMpi, all, with_five},
      {"collectives", "nccl stand-in", kStandin, all, with_five},
      {"collectives", "nccl", kNccl, {}, {}, kNcclAsks},
      {"epochs", "torch sampler", kSampling, indices, to_nine},
      {"epochs", "paddle sampler", kSampling, indices, to_nine},
      {"epochs", "exact sampler", kSampling, indices, to_nine},
      {"resuming", "torch sampler", kResume, indices, to_nine},
      {"resuming", "paddle sampler", kResume, indices, to_nine},
      {"resuming", "exact sampler", kResume, indices, to_nine},
      {"sync_batch_norm", "threads, CPU kernels", kNorm, floats, with_four},
      {"sync_batch_norm", "threads, plain kernels", kNorm, floats, {2}},
      {"sync_batch_norm",
       "processes, CPU kernels",
       kNormGroups,
       {"float32", "float64"},
       {2}},
      {"sync_batch_norm",
       "processes, CPU kernels",
       kNormGroups,
       {"bfloat16"},
       {3}},
      {"sync_batch_norm",
       "processes, CPU kernels",
       kNormGroups,
       {"float16"},
       {4}},
      {"sync_batch_norm",
       "nccl stand-in, CUDA kernels",
       kNormStandin,
       {"float32", "float16", "bfloat16"},
       {1, 2}},
      {"sync_batch_norm",
       "nccl, CUDA kernels",
       kNormNccl,
       {},
       {},
       kNormNcclAsks},
      {"sync_batch_norm_bits",
       "threads and processes",
       kNormGroups,
       {"float32", "float64"},
       {2}},
      {"sync_batch_norm_bits",
       "threads and processes",
       kNormGroups,
       {"bfloat16"},
       {3}},
      {"sync_batch_norm_bits",
       "threads and processes",
       kNormGroups,
       {"float16"},
       {4}},
      {"resnet_steps", "threads", kNetwork, f32, {2, 4}},
      {"resnet_bits", "processes", kNetwork, f32, {2}},
      {"resnet_trainer", "threads", kTrainer, f32, {2, 4}},
  };
  return rows;
}

}  // namespace lockstep
