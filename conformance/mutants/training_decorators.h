// Models and samplers that pass calls on, but for one that they do wrong.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_TRAINING_DECORATORS_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_TRAINING_DECORATORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/buffers.h"
#include "models/model.h"
#include "models/parameters.h"
#include "sampler/sampler.h"

namespace lockstep {

// Trains `inner`, which it borrows, by `step` instead.
class ModelMutant : public Model {
 public:
  using Step = std::function<absl::StatusOr<Metrics>(
      Model&, const Batch&, float gradient_scale, GradientReady)>;

  ModelMutant(Model& inner, Step step)
      : inner_(inner), step_(std::move(step)) {}

  Parameters& parameters() override { return inner_.parameters(); }
  Buffers& buffers() override { return inner_.buffers(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return inner_.ConvertSyncBatchNorm(group);
  }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    return step_(inner_, batch, gradient_scale, ready);
  }
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return inner_.Evaluate(batch);
  }

 private:
  Model& inner_;
  Step step_;
};

// Draws by `draw` from the sampler that it owns and the epoch that was set.
class SamplerMutant : public Sampler {
 public:
  using Draw = std::function<absl::StatusOr<std::vector<int64_t>>(
      Sampler&, int64_t epoch)>;

  SamplerMutant(std::unique_ptr<Sampler> inner, Draw draw)
      : inner_(std::move(inner)), draw_(std::move(draw)) {}

  void SetEpoch(int64_t epoch) override { epoch_ = epoch; }
  absl::StatusOr<std::vector<int64_t>> Indices() override {
    return draw_(*inner_, epoch_);
  }

 private:
  std::unique_ptr<Sampler> inner_;
  Draw draw_;
  int64_t epoch_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_TRAINING_DECORATORS_H_
