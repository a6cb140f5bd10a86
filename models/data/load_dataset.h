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

namespace lockstep {

// The files that each data set reads, one line each, for the help of --dataset.
inline constexpr char kDatasetHelp[] =
    "fashion_mnist  Fashion-MNIST's or MNIST's four IDX files\n"
    "cifar10        CIFAR-10's binary files, data_batch_1.bin and so on\n"
    "image_folder   JPEGs and PNGs in train/CLASS/, and in test/CLASS/ or "
    "val/CLASS/\n"
    "image_list     those that train_list.txt and val_list.txt name, in lines "
    "of a path and a label\n"
    "synthetic      made up: each class a pattern in noise; needs no files";

// The largest number of classes of a data set.
inline constexpr int kMaxClasses = 1'000'000;

struct DatasetOptions {
  // The number of samples of each part; all samples if not set. Image folders
  // and lists may be sorted by class, so their samples are spread evenly over
  // the part. Other data sets take the first samples, except with
  // test_fraction, which spreads them too. `synthetic` has 10,000 and 1,000
  // samples if not set.
  std::optional<int64_t> train_samples = std::nullopt;
  std::optional<int64_t> test_samples = std::nullopt;

  // If not 0, the share of the training images that is drawn for testing, from
  // `seed`. The format's own test part is then not used, and an image folder
  // may have its classes in the folder itself, without train/. Not for
  // synthetic. Above 0 and below 1.
  double test_fraction = 0;

  // Image folders and lists: the channels of every image after conversion, 1 or
  // 3.
  int64_t channels = 3;

  // Image folders and lists: whether to decode every file once while loading,
  // and leave out files whose bytes are no decodable image. An epoch then has
  // the same samples on every rank and in every run. Other errors of reading a
  // file remain errors. If false, nothing is decoded while loading, and a bad
  // image is an error of Read. Cost: decoding every image once, on `threads`
  // threads (0: one for each core of this process). progress: called from this
  // thread after some files, with the number of files that are done and their
  // total.
  bool skip_bad_images = false;
  int threads = 0;
  std::function<void(int64_t done, int64_t total)> progress = {};

  // Lists and synthetic: the number of classes. 0: a list has the largest label
  // in train_list.txt plus 1, and synthetic has 10. Other data sets: 0, or
  // their number of classes.
  int num_classes = 0;

  ImageShape shape = {224, 224, 3};  // Only for synthetic.
  uint64_t seed = 0;                 // For synthetic and test_fraction.
};

struct DatasetParts {
  std::unique_ptr<const Dataset> train;
  std::unique_ptr<const Dataset> test;
  // The errors of the images that skip_bad_images left out of both parts.
  std::vector<std::string> skipped;
};

// Returns the sentence in which commands report DatasetParts::skipped: the
// number of images, and the first image's error, which names its file. Returns
// "" if no image was skipped. No line end.
std::string SkippedText(const std::vector<std::string>& skipped);

// Loads the data set `name` of kDatasetHelp from the folder `dir`. synthetic
// needs no folder. fashion_mnist reads kFashionMnistDir if `dir` is empty.
//
// Labels: an image folder's classes are the folders in train/, sorted by the
// bytes of their names, as in torchvision's ImageFolder. Images are sorted
// likewise, at any depth below their class. test/ is preferred to val/ and need
// not have every class. A list's paths are relative to `dir` unless they are
// absolute, and may have blanks.
//
// Errors, one line: kInvalidArgument or kOutOfRange, beginning with the flag
// (--dataset, --data_dir, --train_samples, --test_samples, --test_fraction,
// --num_classes, --in_channels, --image_size), for the options; kNotFound for a
// missing folder or file; kInvalidArgument or kDataLoss for an invalid file or
// folder (an empty class folder, a class that train/ lacks, a label that is no
// number or out of range, a file of a wrong size), beginning with its path, or,
// in lists, with the list's path and the line.
absl::StatusOr<DatasetParts> LoadDataset(const std::string& name,
                                         const std::string& dir,
                                         const DatasetOptions& options = {});

// Appends a file of CIFAR-10. The file has at least one record: a label and the
// red, green and blue planes of 32 x 32 pixels. images: [n, 32, 32, 3]; labels:
// [n]; unspecified after an error. LoadDataset reads at most kMaxCifarRecords
// a file, twenty times the original's 10,000. Errors begin with `name`.
inline constexpr int64_t kCifarSide = 32;
inline constexpr int kCifarClasses = 10;
inline constexpr int64_t kMaxCifarRecords = 200'000;
absl::Status AppendCifar10(absl::string_view bytes, const std::string& name,
                           std::vector<uint8_t>& images,
                           std::vector<uint8_t>& labels);

// Appends one record to `bytes`. image: [32, 32, 3]; label: in [0,
// kCifarClasses).
void AppendCifar10Record(const Image& image, int label, std::string& bytes);

// Returns `count` indices that are spread evenly over [0, size), ascending.
std::vector<int64_t> SpreadIndices(int64_t count, int64_t size);

// Returns the number of samples of the option, or `size` if it is not set.
// Errors: kOutOfRange, beginning with the flag, if the option is not in [1,
// size].
absl::StatusOr<int64_t> SampleCount(absl::string_view flag,
                                    const std::optional<int64_t>& samples,
                                    int64_t size);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_LOAD_DATASET_H_
