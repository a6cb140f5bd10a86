// Writes data sets as files that LoadDataset reads.
#ifndef LOCKSTEP_MODELS_DATA_EXPORT_DATASET_H_
#define LOCKSTEP_MODELS_DATA_EXPORT_DATASET_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "models/data/load_dataset.h"

namespace lockstep {

// The formats of an export, named as --dataset names their readers.
enum class ExportFormat {
  // train/CLASS/00000.jpg and test/CLASS/00000.jpg, numbered by the index in
  // the data set. The folder of a class without a name is its label, with as
  // many digits as the largest label has, so that names and labels have the
  // same order. A slash in a class's name becomes an underscore.
  kImageFolder,
  // train/00000.jpg and val/00000.jpg; train_list.txt and val_list.txt with a
  // line "train/00000.jpg 9" for each image, in the order of the data set.
  // Paths have no blanks, since PaddleViT splits a line at its blank.
  kImageList,
  // data_batch_1.bin to data_batch_5.bin, whose sizes differ by at most one
  // image, and test_batch.bin; in the order of the data set.
  kCifar10,
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kImageFolder;

  // Image folders and lists: JPEGs of `quality` in [1, 100], or PNGs.
  bool jpeg = true;
  int quality = 95;

  // The largest number of images of each part, at least 1, spread evenly over
  // it.
  std::optional<int64_t> limit = std::nullopt;

  // The size to which Resizer resizes every image, antialiased bilinear. The
  // ratio of the sides is not kept. 0 and 0: images keep their sizes.
  int64_t height = 0;
  int64_t width = 0;

  // The number of channels, 1 or 3, to which every image is converted after
  // resizing. 0: images keep their channels.
  int64_t channels = 0;
};

struct ExportSummary {
  int64_t train = 0;  // The number of images written.
  int64_t test = 0;
  // A warning for readers of the export, one line without a line end, or "".
  std::string note;
};

// A callback before each image, with the part's name and the number of its
// images that are written. An error ends the export.
using ExportStep = absl::FunctionRef<absl::Status(absl::string_view part,
                                                  int64_t done, int64_t total)>;

// Writes both parts below the folder `dir`, which is created if it does not
// exist. Holds one image at a time in memory.
//
// Errors, one line: kInvalidArgument, beginning with --format or --limit, if
// kCifar10 cannot hold the data set (it needs images of 32 x 32 with 3
// channels, at most 10 classes, at least 5 images for training, at most
// kMaxCifarRecords a file); the errors of `step`; the data set's, with the
// image's path; the file system's, with the path. After an error some files are
// written.
absl::StatusOr<ExportSummary> ExportDataset(const DatasetParts& parts,
                                            const ExportOptions& options,
                                            const std::string& dir,
                                            ExportStep step);

// Prints the progress of a task with many images: "train: 1200 of 60000 images,
// 400 images/s, 147 s left". On a terminal the line is rewritten, at most five
// times a second; otherwise lines follow each other, at most one a second. A
// task that ends before the first line is due prints nothing. Not thread safe.
class ImageProgress {
 public:
  // rewrite: whether `out` is a terminal.
  ImageProgress(std::ostream& out, bool rewrite);
  ~ImageProgress() { Clear(); }
  ImageProgress(const ImageProgress&) = delete;
  ImageProgress& operator=(const ImageProgress&) = delete;

  // Reports that `done` of `total` images are done at `now`. The rate counts
  // from the first call of a task. Another `what` or `total`, or a smaller
  // `done`, begins a new task.
  void Show(absl::string_view what, int64_t done, int64_t total,
            absl::Time now);

  // Removes the line from the terminal.
  void Clear();

 private:
  std::ostream& out_;
  const bool rewrite_;
  bool shown_ = false;  // A line is on the terminal.
  std::string what_;
  int64_t total_ = 0;
  int64_t first_done_ = 0;
  int64_t last_done_ = 0;
  absl::Time begin_ = absl::InfinitePast();
  absl::Time printed_ = absl::InfinitePast();
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_EXPORT_DATASET_H_
