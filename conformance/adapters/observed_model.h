// A model that tells which samples of a data set it is given.
#ifndef LOCKSTEP_CONFORMANCE_ADAPTERS_OBSERVED_MODEL_H_
#define LOCKSTEP_CONFORMANCE_ADAPTERS_OBSERVED_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/model.h"

namespace lockstep {

// Finds a sample by its pixels and label. Where a data set has the same one
// several times, the first counts.
class SampleFinder {
 public:
  explicit SampleFinder(const Dataset& data);

  // The positions of a batch's samples. Errors: kInternal if one is none of
  // the data set's.
  absl::StatusOr<std::vector<int64_t>> Find(const Batch& batch) const;

 private:
  const int64_t image_size_;
  // Bits of the pixels and the label.
  std::map<std::string, int64_t> positions_;
};

// Passes everything on to `model`, which it owns, and notes the samples that
// each call of ForwardBackward and Evaluate computes with: what is reported of
// a trainer is then what it did, not what it meant to do. Errors: the model's;
// SampleFinder's.
class ObservedModel : public Model {
 public:
  ObservedModel(std::unique_ptr<Model> model, const Dataset& train,
                const Dataset& test)
      : model_(std::move(model)), train_(train), test_(test) {}

  Parameters& parameters() override { return model_->parameters(); }
  Buffers& buffers() override { return model_->buffers(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return model_->ConvertSyncBatchNorm(group);
  }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override;
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override;

  // Of the last ForwardBackward; of all calls of Evaluate.
  const std::vector<int64_t>& trained() const { return trained_; }
  const std::vector<int64_t>& evaluated() const { return evaluated_; }

 private:
  const std::unique_ptr<Model> model_;
  const SampleFinder train_;
  const SampleFinder test_;
  std::vector<int64_t> trained_;
  std::vector<int64_t> evaluated_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_ADAPTERS_OBSERVED_MODEL_H_
