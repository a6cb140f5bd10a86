// Splits a data set into a training part and a test part.
#ifndef LOCKSTEP_MODELS_DATA_SPLIT_H_
#define LOCKSTEP_MODELS_DATA_SPLIT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/dataset.h"
#include "models/data/image.h"

namespace lockstep {

// Some images of a data set, in the order of `indices`. Shares the data set.
class SubsetDataset final : public Dataset {
 public:
  // indices: each in [0, whole->size()).
  SubsetDataset(std::shared_ptr<const Dataset> whole,
                std::vector<int64_t> indices);

  int64_t size() const override {
    return static_cast<int64_t>(indices_.size());
  }
  int num_classes() const override { return whole_->num_classes(); }
  int label(int64_t index) const override {
    return whole_->label(indices_[index]);
  }
  std::string file(int64_t index) const override {
    return whole_->file(indices_[index]);
  }
  absl::StatusOr<Image> Read(int64_t index) const override {
    return whole_->Read(indices_[index]);
  }
  absl::Status ReadRegion(int64_t index, ChooseRegion choose,
                          TakeRows take) const override {
    return whole_->ReadRegion(indices_[index], choose, take);
  }
  std::optional<ImageShape> shape() const override { return whole_->shape(); }
  std::string class_name(int label) const override {
    return whole_->class_name(label);
  }

 private:
  const std::shared_ptr<const Dataset> whole_;
  const std::vector<int64_t> indices_;
};

struct SplitIndices {
  std::vector<int64_t> train;  // Ascending, as test.
  std::vector<int64_t> test;
};

// Draws the test images from [0, size): size * fraction of them, rounded. Each
// part gets at least one image. The result depends only on the arguments, so
// every rank draws the same images; another seed draws others.
//
// size: at least 2. fraction: in (0, 1). Cost: a sort.
SplitIndices DrawSplit(int64_t size, double fraction, uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_SPLIT_H_
