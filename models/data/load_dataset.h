// The data sets that commands know by name, and the readers of their files.
#ifndef LOCKSTEP_MODELS_DATA_LOAD_DATASET_H_
#define LOCKSTEP_MODELS_DATA_LOAD_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/image_index.h"

namespace lockstep {

// What each data set reads, one a line, as the help of --dataset has it.
inline constexpr char kDatasetHelp[] =
    "fashion_mnist  Fashion-MNIST's or MNIST's four IDX files\n"
    "cifar10        CIFAR-10's binary files, data_batch_1.bin and so on\n"
    "image_folder   JPEGs and PNGs in train/CLASS/, and in test/CLASS/ or "
    "val/CLASS/\n"
    "image_list     those that train_list.txt and val_list.txt name, in lines "
    "of a path and a label\n"
    "synthetic      made up: each class a pattern in noise; needs no files";

struct DatasetOptions {
  // How many samples of each part; all of them if not set. Image folders and
  // lists, which may be sorted by class, give as many spread evenly over the
  // part; the others the first. Of `synthetic`, 10,000 and 1,000 if not set.
  std::optional<int64_t> train_samples = std::nullopt;
  std::optional<int64_t> test_samples = std::nullopt;

  // Not 0: this share of the images to train on is drawn for testing instead,
  // from `seed`, and the part that the format has for testing is not used. An
  // image folder may then have its classes in the folder itself, without
  // train/. Not for synthetic. Above 0 and below 1.
  double test_fraction = 0;

  // Image folders and lists: every image is converted to these, 1 or 3.
  int64_t channels = 3;

  // Image folders and lists: decodes every file once while loading, and leaves
  // out those whose bytes are no image that can be decoded, so that an epoch
  // has the same samples on every rank and every time. A file that cannot be
  // read for another reason stays an error. Without this nothing is decoded
  // while loading, and a bad image is an error of Read. Cost: that of an
  // epoch's decoding, on `threads` threads (0: as many as this process has
  // cores). progress: called from this thread after some files, with how many
  // of how many are done.
  bool skip_bad_images = false;
  int threads = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};

  // Lists and synthetic: the number of classes. If 0, a list has as many as its
  // largest label in train_list.txt says, and synthetic has 10. Of others: 0,
  // or as many as they have.
  int num_classes = 0;

  ImageShape shape = {224, 224, 3};  // Synthetic.
  uint64_t seed = 0;                 // Synthetic, and of test_fraction.
};

struct DatasetParts {
  std::unique_ptr<const Dataset> train;
  std::unique_ptr<const Dataset> test;
  // The errors of the images that skip_bad_images left out of both.
  std::vector<std::string> skipped;
};

// Returns the sentence with which commands tell of DatasetParts::skipped: how
// many images there are, and the error of the first, which names its file. ""
// if there is none. No line end.
std::string SkippedText(const std::vector<std::string>& skipped);

// Loads the data set `name`, one of those in kDatasetHelp, from the folder
// `dir`, which synthetic does not need and fashion_mnist replaces by
// kFashionMnistDir if it is empty.
//
// Labels: an image folder's classes are the folders in train/ in the order of
// their names (of their bytes, as torchvision's ImageFolder has it), and so are
// the images, at any depth below their class; test/ is taken before val/, and
// may lack classes. A list's paths are taken from `dir` unless they are
// absolute, and may have blanks.
//
// Errors, one line: kInvalidArgument or kOutOfRange, beginning with the flag
// (--dataset, --data_dir, --train_samples, --test_samples, --test_fraction,
// --num_classes, --in_channels, --image_size), for what the options say;
// kNotFound for a missing folder or file; kInvalidArgument or kDataLoss for a
// file or folder that is not as it should be (an empty class folder, a class
// that train/ lacks, a label that is no number or out of range, a file of a
// wrong size), beginning with its path, or, in lists, with the list's path and
// the line.
absl::StatusOr<DatasetParts> LoadDataset(const std::string& name,
                                         const std::string& dir,
                                         const DatasetOptions& options = {});

// The readers of whole files, given their bytes. Errors begin with `name`.

// The lines of an image list: a path, blanks, a label in [0, num_classes), or
// below kMaxClasses if num_classes is 0. The path is what stands before the
// last blank and the blanks around it, in `dir`, if there is one, unless it is
// absolute. At least one line.
inline constexpr int kMaxClasses = 1'000'000;
absl::StatusOr<ImageIndex> ParseImageList(absl::string_view text,
                                          const std::string& name,
                                          int num_classes,
                                          const std::string& dir = "");

// Appends a file of CIFAR-10: records of a label and the red, green and blue
// planes of 32 x 32 pixels; at least one. images: [n, 32, 32, 3]; labels: [n];
// after an error unspecified. LoadDataset reads at most kCifarMostRecords a
// file, twenty times the original's 10,000.
inline constexpr int64_t kCifarSide = 32;
inline constexpr int kCifarClasses = 10;
inline constexpr int64_t kCifarMostRecords = 200'000;
absl::Status AppendCifar10(absl::string_view bytes, const std::string& name,
                           std::vector<uint8_t>& images,
                           std::vector<uint8_t>& labels);

// Appends such a record. image: [32, 32, 3]; label: in [0, kCifarClasses).
void AppendCifar10Record(const Image& image, int label, std::string& bytes);

// Load an image folder and an image list for LoadDataset, which splits what
// they return: with options.test_fraction they load no part for testing.
absl::StatusOr<DatasetParts> LoadImageFolder(const std::string& dir,
                                             const DatasetOptions& options);
absl::StatusOr<DatasetParts> LoadImageList(const std::string& dir,
                                           const DatasetOptions& options);

// `count` indices that are spread evenly over [0, size), ascending.
std::vector<int64_t> SpreadIndices(int64_t count, int64_t size);

// The number of samples that the option says, or all. Errors: kOutOfRange,
// beginning with the flag, unless it is in [1, size].
absl::StatusOr<int64_t> SampleCount(absl::string_view flag,
                                    const std::optional<int64_t>& samples,
                                    int64_t size);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_LOAD_DATASET_H_
