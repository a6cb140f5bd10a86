// Data sets of labelled images, and those in memory that come from MNIST's IDX
// files.
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

  // In [0, num_classes()). Cost: a look-up; reads no file.
  virtual int label(int64_t index) const = 0;

  // The path of the image's file; "" where it has no file of its own.
  virtual std::string file(int64_t index) const;

  // The decoded image; the same one at every call. Cost: that of decoding it
  // where it lies in a file. Errors begin with the file's name.
  virtual absl::StatusOr<Image> Read(int64_t index) const = 0;

  // Hands over the part of that image that `choose`, which is called once and
  // before `take`, says given its shape. Cost: of a JPEG, mostly that of the
  // region alone; in memory, no copy. Errors: those of Read, as far as they are
  // met, perhaps after some rows; kInternal for a region beyond the image.
  virtual absl::Status ReadRegion(int64_t index, ChooseRegion choose,
                                  TakeRows take) const;

  // The shape of every image, where all have the same and it is known without
  // decoding them.
  virtual std::optional<ImageShape> shape() const = 0;

  // The name of the class with this label; the label in digits where classes
  // have no names.
  virtual std::string class_name(int label) const;
};

// Images in memory. They stay bytes, as files hold them, a quarter of what
// float32 would take; a batch is converted as it is gathered.
class MemoryDataset final : public Dataset {
 public:
  // images: [n, height, width, channels], of `shape`. labels: [n], each in [0,
  // num_classes). class_names: of every class, or empty.
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

  // The values of one image: height * width * channels.
  int64_t image_size() const { return shape_.size(); }

  const std::vector<uint8_t>& images() const { return images_; }
  const std::vector<uint8_t>& labels() const { return labels_; }

  // Drops all but the first `n` images, which are at most size().
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

// Where the Debian package dataset-fashion-mnist installs it.
inline constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

// Fashion-MNIST, or MNIST, which has the same four files: 1 x 28 x 28 images of
// 10 classes, which are named as Fashion-MNIST's. The original has 60,000 to
// train on and 10,000 to test with; any number of each is taken here.
struct FashionMnist {
  MemoryDataset train;
  MemoryDataset test;
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte,
// t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte from a folder; each may be
// plain or compressed, with or without `.gz` at the end of its name (without is
// tried first). Cost: 55 MB of memory and half a second for the original.
//
// Errors name the file and the fault: kNotFound if the folder or a file is
// missing, with the package and the flag that help; kInvalidArgument if images
// are not 28 x 28, a label is above 9 or counts differ; those of
// ReadIdxImages.
absl::StatusOr<FashionMnist> LoadFashionMnist(
    const std::string& dir = kFashionMnistDir);

// An IDX file is two zero bytes, a type, a rank (the number of dimensions),
// each dimension as a big-endian uint32, and the values, the last dimension
// fastest. Unsigned bytes, type 8, are the only type read here.

struct IdxImages {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [count, height, width].
};

// Read a regular file: images, rank 3, or labels, rank 1; decompressed if it
// starts with gzip's magic bytes, whatever it is called. Memory grows with the
// bytes that arrive, never with what a header claims. Bytes after the end of
// the last gzip member are ignored, as gzip does.
//
// Errors, all starting with `path`: kNotFound if nothing is there;
// kInvalidArgument if it is a directory or anything else but a regular file, is
// not IDX, or holds labels where images are expected or the other way round, or
// another type or rank, or nothing; kDataLoss if it ends too early or goes on
// too long, its dimensions cannot be true, or compressed data is damaged, down
// to the checksum at its end; otherwise the code of the system's errno.
absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path);
absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_DATASET_H_
