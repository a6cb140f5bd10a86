// Runs variants on ranks and sorts what they give.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/layer_run.h"
#include "conformance/syncbn/solved_problem.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {

namespace {

class OwningLayer : public BatchNorm {
 public:
  OwningLayer(std::unique_ptr<BatchNormKernels> kernels,
              std::unique_ptr<BatchNorm> layer)
      : kernels_(std::move(kernels)), layer_(std::move(layer)) {}

  int64_t SavedBytes(DataType type) const override {
    return layer_->SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    return layer_->Forward(buffers);
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return layer_->Backward(buffers, gradients_ready);
  }

 private:
  const std::unique_ptr<BatchNormKernels> kernels_;  // Outlives layer_.
  const std::unique_ptr<BatchNorm> layer_;
};

}  // namespace

LayerFactory SyncBatchNormOver(const KernelsFactory& make_kernels) {
  return [make_kernels](const BatchNormOptions& options, Communicator& group)
             -> absl::StatusOr<std::unique_ptr<BatchNorm>> {
    std::unique_ptr<BatchNormKernels> kernels = make_kernels();
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<BatchNorm> layer,
                              SyncBatchNorm::Create(options, *kernels, group));
    return std::make_unique<OwningLayer>(std::move(kernels), std::move(layer));
  };
}

absl::StatusOr<std::vector<std::vector<RankRun>>> RunVariants(
    Backend backend, const SolvedProblem& solved,
    std::span<const BatchNormVariant> variants, const LayerFactory& make,
    const RunRanksOptions& options) {
  const auto outputs = RunRanksCollect(
      backend, solved.problem.world_size,
      [&](Communicator& group) -> absl::StatusOr<std::string> {
        std::vector<RankRun> runs;
        for (const BatchNormVariant& variant : variants) {
          LOCKSTEP_ASSIGN_OR_RETURN(RankRun run,
                                    RunOnRank(solved, variant, make, group));
          runs.push_back(std::move(run));
        }
        return Serialize(runs);
      },
      options);
  std::vector<std::vector<RankRun>> by_variant(variants.size());
  for (const absl::StatusOr<std::string>& output : outputs) {
    LOCKSTEP_RETURN_IF_ERROR(output.status());
    std::vector<RankRun> runs = ParseRuns(*output);
    for (size_t v = 0; v < variants.size(); ++v) {
      by_variant[v].push_back(std::move(runs[v]));
    }
  }
  return by_variant;
}

}  // namespace lockstep
