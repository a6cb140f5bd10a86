// Decorates a model, and keeps the group that it was converted with.
#include "conformance/network/norm_step.h"

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/mutants/training_decorators.h"
#include "conformance/network/network_run.h"
#include "models/buffers.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

class NormModelMutant : public ModelMutant {
 public:
  NormModelMutant(Model& inner, NormStep step)
      : ModelMutant(inner, [this, step = std::move(step)](
                               Model& model, const Batch& batch, float scale,
                               Ready ready) {
          return step(model, group_, batch, scale, ready);
        }) {}

  int ConvertSyncBatchNorm(Communicator& group) override {
    group_ = &group;
    return ModelMutant::ConvertSyncBatchNorm(group);
  }

 private:
  Communicator* group_ = nullptr;
};

}  // namespace

NetworkMutation Stepping(
    std::function<NormStep(const NetworkRun&, int rank)> step) {
  NetworkMutation mutation;
  mutation.model = [step = std::move(step)](Model& inner, const NetworkRun& run,
                                            int rank) {
    return std::make_unique<NormModelMutant>(inner, step(run, rank));
  };
  return mutation;
}

NetworkMutation ChangingBuffers(
    std::function<void(int rank, std::span<const float> before, Buffers&)>
        change) {
  return Stepping([change = std::move(change)](const NetworkRun&, int rank) {
    return [change, rank](Model& model, Communicator*, const Batch& batch,
                          float scale, Ready ready) {
      const auto running = model.buffers().floats();
      const std::vector<float> before(running.begin(), running.end());
      auto metrics = model.ForwardBackward(batch, scale, ready);
      change(rank, before, model.buffers());
      return metrics;
    };
  });
}

void ReadyAll(Model& model, Ready ready) {
  for (int i = model.parameters().count() - 1; i >= 0; --i) ready(i);
}

}  // namespace lockstep
