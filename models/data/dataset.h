// Labelled images in memory, the data set that they are loaded from, and its
// files: MNIST's IDX format.
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
