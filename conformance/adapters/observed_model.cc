// Looks samples up by their bits.
#include "conformance/adapters/observed_model.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/model.h"

namespace lockstep {
namespace {

std::string KeyOf(std::span<const float> image, int32_t label) {
  const auto bytes = std::as_bytes(image);
  std::string key(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  key.append(reinterpret_cast<const char*>(&label), sizeof(label));
  return key;
}

}  // namespace

SampleFinder::SampleFinder(const Dataset& data)
    : image_size_(data.image_size()) {
  std::vector<float> image(data.image_size());
  for (int64_t i = 0; i < data.size; ++i) {
    data.GatherImages(std::span(&i, 1), image);
    positions_.emplace(KeyOf(image, data.labels[i]), i);
  }
}

absl::StatusOr<std::vector<int64_t>> SampleFinder::Find(
    const Batch& batch) const {
  std::vector<int64_t> positions;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const auto found = positions_.find(KeyOf(
        batch.images.subspan(i * image_size_, image_size_), batch.labels[i]));
    if (found == positions_.end()) {
      return absl::InternalError("a sample is none of the data set's");
    }
    positions.push_back(found->second);
  }
  return positions;
}

absl::StatusOr<Metrics> ObservedModel::ForwardBackward(const Batch& batch,
                                                       float gradient_scale,
                                                       GradientReady ready) {
  LOCKSTEP_ASSIGN_OR_RETURN(trained_, train_.Find(batch));
  return model_->ForwardBackward(batch, gradient_scale, ready);
}

absl::StatusOr<Metrics> ObservedModel::Evaluate(const Batch& batch) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> positions,
                            test_.Find(batch));
  evaluated_.insert(evaluated_.end(), positions.begin(), positions.end());
  return model_->Evaluate(batch);
}

}  // namespace lockstep
