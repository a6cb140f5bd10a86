// The table of claims.
#include "conformance/report/known_claims.h"

#include <vector>

namespace lockstep {
namespace {

constexpr char kNone[] = "none: the same bits";
constexpr char kInAnyOrder[] =
    "element by element, what float32 can be off in any order of additions";
constexpr char kSpreads[] =
    "tensor by tensor, 16 times the rounding that one rank and four others "
    "that add in other orders show";

}  // namespace

const std::vector<KnownClaim>& KnownClaims() {
  static const auto& claims = *new std::vector<KnownClaim>{
      {"gradients",
       "LeNet's gradients in one step are one rank's on the global batch, "
       "however samples are dealt and whatever the buckets.",
       kInAnyOrder, "//conformance:gradient_equivalence_test", false},
      {"training_steps",
       "In ten steps of the trainer each gradient and each update is one "
       "rank's.",
       kInAnyOrder, "//conformance:gradient_equivalence_test", false},
      {"recipe_steps",
       "Each of a hundred steps on Fashion-MNIST leads where one rank's does.",
       "16 times what other orders of additions do, in 3 of 5 steps; in the "
       "others a quarter of what one sample weighs",
       "//conformance:training_equivalence_test", false},
      {"recipe_end",
       "A hundred steps on Fashion-MNIST end where one rank's do.",
       "16 times the furthest of five ranks that add in other orders",
       "//conformance:training_equivalence_test", false},
      {"gradient_sums",
       "Each gradient of a hundred steps is the sum of the ranks' own.", kNone,
       "//conformance:training_equivalence_test", true},
      {"trained_bits",
       "Twenty steps of LeNet and ResNet-18 end with the same bits on every "
       "host "
       "backend, whatever the buckets.",
       kNone, "//conformance:bitwise_training_test", true},
      {"evaluation",
       "Loss and accuracy are one rank's, also on sets that the ranks do not "
       "divide.",
       kNone, "//conformance:evaluation_equivalence_test", true},
      {"collectives",
       "Every operation gives what the reference gives in the stated order of "
       "additions, and writes nothing beside it.",
       kNone, "//conformance/collectives:collectives_test", true},
      {"epochs", "Each epoch deals to each rank what its semantics say.", kNone,
       "//conformance/sampling:sampling_test", true},
      {"resuming",
       "An epoch can be stopped after any step and gone on with at any world "
       "size, no sample drawn twice and none lost.",
       kNone, "//conformance/sampling:resume_test", true},
      {"sync_batch_norm",
       "SyncBatchNorm over N ranks is batch norm over the whole batch: "
       "outputs, gradients and running statistics.",
       "element by element, what the type can be off in any order of "
       "additions, and its last rounding",
       "//conformance/syncbn:sync_batch_norm_test", false},
      {"sync_batch_norm_bits",
       "SyncBatchNorm gives the same bits on threads, processes and in every "
       "run.",
       kNone, "//conformance/syncbn:sync_batch_norm_groups_test", true},
      {"resnet_steps",
       "Each step of ResNet-18 with SyncBatchNorm is one rank's: gradients, "
       "running statistics and loss.",
       kSpreads, "//conformance/network:network_equivalence_test", false},
      {"resnet_bits",
       "ResNet-18 with SyncBatchNorm ends a step with the bits of threads.",
       kNone, "//conformance/network:network_equivalence_test", true},
      {"resnet_trainer", "The same through the trainer and its sampler.",
       kSpreads, "//conformance/network:network_trainer_test", false},
  };
  return claims;
}

}  // namespace lockstep
