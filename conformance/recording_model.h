// A model that notes what a trainer does with it.
#ifndef LOCKSTEP_CONFORMANCE_RECORDING_MODEL_H_
#define LOCKSTEP_CONFORMANCE_RECORDING_MODEL_H_

#include <utility>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {

// Passes everything on to `model`, which it borrows, and records each training
// step as the model sees it. A step's gradients are read when the next step
// begins, or at Finish: by then they are what the update used. It asks nothing
// of the trainer but that it trains through the Model interface.
class RecordingModel : public Model {
 public:
  explicit RecordingModel(Model& model) : model_(model) {}

  Parameters& parameters() override { return model_.parameters(); }
  Buffers& buffers() override { return model_.buffers(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return model_.ConvertSyncBatchNorm(group);
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    RecordState();
    trace_.samples.push_back({{batch.images.begin(), batch.images.end()},
                              {batch.labels.begin(), batch.labels.end()}});
    return model_.ForwardBackward(batch, gradient_scale, ready);
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return model_.Evaluate(batch);
  }

  // The trace of the steps so far. Call once, after the last step.
  RankTrace Finish() {
    RecordState();
    return std::move(trace_);
  }

 private:
  void RecordState() {
    const Parameters& p = model_.parameters();
    trace_.parameters.emplace_back(p.values().begin(), p.values().end());
    if (trace_.samples.empty()) return;
    trace_.gradients.emplace_back(p.gradients().begin(), p.gradients().end());
  }

  Model& model_;
  RankTrace trace_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_RECORDING_MODEL_H_
