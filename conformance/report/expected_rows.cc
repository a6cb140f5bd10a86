// The table of rows.
#include "conformance/report/expected_rows.h"

#include <vector>

namespace lockstep {
namespace {

constexpr char kNeedsGpu[] =
    "needs a GPU; its test, which --config=cuda runs, records no number";

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

}  // namespace

const std::vector<ExpectedRow>& ExpectedRows() {
  static const auto& rows = *new std::vector<ExpectedRow>{
      {"gradients", "threads", kGradients, ""},
      {"gradients", "processes", kGradients, ""},
      {"training_steps", "threads", kGradients, ""},
      {"training_steps", "processes", kGradients, ""},
      {"recipe_steps", "threads", kRecipe, ""},
      {"recipe_end", "threads", kRecipe, ""},
      {"gradient_sums", "threads", kRecipe, ""},
      {"trained_bits", "threads", kBits, ""},
      {"trained_bits", "processes", kBits, ""},
      {"trained_bits", "mixed", kBits, ""},
      {"trained_bits", "mpi", kBitsMpi, ""},
      {"evaluation", "threads", kEvaluation, ""},
      {"evaluation", "processes", kEvaluation, ""},
      {"collectives", "threads", kHost, ""},
      {"collectives", "processes", kHost, ""},
      {"collectives", "mixed", kHost, ""},
      {"collectives", "mpi", kMpi, ""},
      {"collectives", "nccl stand-in", kStandin, ""},
      {"collectives", "nccl", kNccl, kNeedsGpu},
      {"epochs", "torch sampler", kSampling, ""},
      {"epochs", "paddle sampler", kSampling, ""},
      {"epochs", "exact sampler", kSampling, ""},
      {"resuming", "torch sampler", kResume, ""},
      {"resuming", "paddle sampler", kResume, ""},
      {"resuming", "exact sampler", kResume, ""},
      {"sync_batch_norm", "threads, CPU kernels", kNorm, ""},
      {"sync_batch_norm", "threads, plain kernels", kNorm, ""},
      {"sync_batch_norm", "processes, CPU kernels", kNormGroups, ""},
      {"sync_batch_norm", "nccl stand-in, CUDA kernels", kNormStandin, ""},
      {"sync_batch_norm", "nccl, CUDA kernels", kNormNccl, kNeedsGpu},
      {"sync_batch_norm_bits", "threads and processes", kNormGroups, ""},
      {"resnet_steps", "threads", kNetwork, ""},
      {"resnet_bits", "processes", kNetwork, ""},
      {"resnet_trainer", "threads", kTrainer, ""},
  };
  return rows;
}

}  // namespace lockstep
