// Data sets of labelled images, and Fashion-MNIST.
#ifndef LOCKSTEP_MODELS_DATA_DATASET_H_
#define LOCKSTEP_MODELS_DATA_DATASET_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/image.h"

namespace lockstep {

// Labelled images, by index. Thread compatible: any number of threads may call
// const methods at once. An index is in [0, size()).
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual int num_classes() const = 0;

  // Returns a label in [0, num_classes()). Cost: a look-up; reads no file.
  virtual int label(int64_t index) const = 0;

  // Returns the path of the image's file, or "" if the image has no file of its
  // own.
  virtual std::string file(int64_t index) const;

  // Returns the decoded image, the same one at every call. Cost: the decoding,
  // if the image is in a file. Errors begin with the file's name.
  virtual absl::StatusOr<Image> Read(int64_t index) const = 0;

  // Passes a region of the image to `take`. `choose` is called once, before
  // `take`, and returns the region for the image's shape. Cost: for a JPEG,
  // mostly the decoding of the region alone; in memory, no copy. Errors: those
  // of Read that decoding the region meets, perhaps after some rows; kInternal
  // if the region is not within the image.
  virtual absl::Status ReadRegion(int64_t index, ChooseRegion choose,
                                  TakeRows take) const;

  // Returns the shape of every image, if all images have one shape and the
  // shape is known without decoding them.
  virtual std::optional<ImageShape> shape() const = 0;

  // Returns the name of the class with this label, or the label in digits if
  // classes have no names.
  virtual std::string class_name(int label) const;
};

// Images in memory. Pixels are bytes, as in files, which take a quarter of
// float32's memory. A batch is converted when it is gathered.
class MemoryDataset final : public Dataset {
 public:
  // images: [n, height, width, channels], of `shape`. labels: [n], each in [0,
  // num_classes). class_names: one for every class, or empty.
  MemoryDataset(ImageShape shape, int num_classes, std::vector<uint8_t> images,
                std::vector<uint8_t> labels,
                std::vector<std::string> class_names = {});

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int num_classes() const override { return num_classes_; }
  int label(int64_t index) const override { return labels_[index]; }
  absl::StatusOr<Image> Read(int64_t index) const override;
  std::optional<ImageShape> shape() const override { return shape_; }
  std::string class_name(int label) const override;
  absl::Status ReadRegion(int64_t index, ChooseRegion choose,
                          TakeRows take) const override;

  // The number of values of one image: height * width * channels.
  int64_t image_size() const { return shape_.size(); }

  const std::vector<uint8_t>& images() const { return images_; }
  const std::vector<uint8_t>& labels() const { return labels_; }

  // Drops all but the first `n` images; `n` is at most size().
  void Truncate(int64_t n);

  // Copies the chosen images, in the given order, scaled to [0, 1] as value /
  // 255 rounded once to float32: bit for bit torchvision's ToTensor.
  //
  // indices: each in [0, size()), repeats allowed; may be empty.
  // out: host float32 [indices.size(), height, width, channels]; overwritten.
  void GatherImages(std::span<const int64_t> indices,
                    std::span<float> out) const;

  // Copies the chosen labels. out: host int32 [indices.size()]; overwritten.
  void GatherLabels(std::span<const int64_t> indices,
                    std::span<int32_t> out) const;

 private:
  ImageShape shape_;
  int num_classes_;
  std::vector<uint8_t> images_;
  std::vector<uint8_t> labels_;
  std::vector<std::string> class_names_;
};

// The folder in which the Debian package dataset-fashion-mnist installs its
// files.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

// Fashion-MNIST, or MNIST, which has the same four files: 1 x 28 x 28 images of
// 10 classes, with Fashion-MNIST's class names. The original has 60,000 images
// for training and 10,000 for testing; other numbers are accepted.
struct FashionMnist {
  MemoryDataset train;
  MemoryDataset test;
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte,
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte from a folder. Each file
// may be plain or compressed, with or without `.gz` at the end of its name
// (without is tried first). Cost: 55 MB of memory and half a second for the
// original.
//
// Errors name the file and the fault: kNotFound if the folder or a file is
// missing, with the package and the flag that help; kInvalidArgument if images
// are not 28 x 28, a label is above 9 or counts differ; the errors of
// ReadIdxImages.
absl::StatusOr<FashionMnist> LoadFashionMnist(
    const std::string& dir = kFashionMnistDir);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_DATASET_H_
