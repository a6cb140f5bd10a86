// Labelled images in memory, and the data set that they are loaded from.
#ifndef LOCKSTEP_MODELS_DATA_DATASET_H_
#define LOCKSTEP_MODELS_DATA_DATASET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// Images stay bytes, as files hold them, a quarter of what float32 would take;
// a batch is converted as it is gathered. Thread compatible: any number of
// threads may gather at once.
struct Dataset {
  int64_t size = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int num_classes = 0;
  std::vector<uint8_t> images;  // [size, channels, height, width].
  std::vector<uint8_t> labels;  // [size], each in [0, num_classes).

  // The values of one image: channels * height * width.
  int64_t image_size() const { return channels * height * width; }

  // Copies the chosen images, in the given order, scaled to [0, 1] as value /
  // 255 rounded once to float32: bit for bit torchvision's ToTensor.
  //
  // indices: each in [0, size), repeats allowed; may be empty.
  // out: host float32 [indices.size(), channels, height, width]; overwritten.
  void GatherImages(std::span<const int64_t> indices,
                    std::span<float> out) const;

  // Copies the chosen labels. out: host int32 [indices.size()]; overwritten.
  void GatherLabels(std::span<const int64_t> indices,
                    std::span<int32_t> out) const;
};

// Where the Debian package dataset-fashion-mnist installs it.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

// Fashion-MNIST, or MNIST, which has the same four files: 1 x 28 x 28 images of
// 10 classes. The original has 60,000 to train on and 10,000 to test with; any
// number of each is taken here.
struct FashionMnist {
  Dataset train;
  Dataset test;
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte,
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte from a folder; each may be
// plain or compressed, with or without `.gz` at the end of its name (without is
// tried first). Cost: 55 MB of memory and half a second for the original.
//
// Errors name the file and the fault: kNotFound if the folder or a file is
// missing, with the package and the flag that help; kInvalidArgument if images
// are not 28 x 28, a label is above 9 or counts differ; those of idx.h.
absl::StatusOr<FashionMnist> LoadFashionMnist(
    const std::string& dir = kFashionMnistDir);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_DATASET_H_
