#include "models/data/export_dataset.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/jpeg.h"
#include "models/data/load_dataset.h"
#include "models/data/png.h"
#include "models/data/resize.h"

namespace lockstep {
namespace {

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? absl::ErrnoToStatus(error.value(), path) : absl::OkStatus();
}

// A file that is written in pieces. Close returns the first error.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)) {
    errno = 0;
    file_.open(path_, std::ios::binary);
    RecordError();
  }

  void Write(absl::string_view bytes) {
    errno = 0;
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    RecordError();
  }

  absl::Status Close() {
    errno = 0;
    file_.close();
    RecordError();
    return status_;
  }

 private:
  // Records the first error.
  void RecordError() {
    if (file_.good() || !status_.ok()) return;
    status_ = absl::ErrnoToStatus(errno != 0 ? errno : EIO,
                                  absl::StrCat(path_, ": cannot write"));
  }

  std::string path_;
  std::ofstream file_;
  absl::Status status_;
};

// One part of the data set: the chosen images in order, in the form in which
// they are written.
class Part {
 public:
  Part(const Dataset& data, const ExportOptions& options)
      : data_(data),
        options_(options),
        count_(std::min(options.limit.value_or(data.size()), data.size())) {}

  const Dataset& data() const { return data_; }
  int64_t count() const { return count_; }
  int64_t index(int64_t i) const { return i * data_.size() / count_; }
  int label(int64_t i) const { return data_.label(index(i)); }

  absl::StatusOr<Image> Read(int64_t i) {
    LOCKSTEP_ASSIGN_OR_RETURN(Image image, data_.Read(index(i)));
    if (options_.height > 0) image = Resize(image);
    const int64_t channels = options_.channels;
    return channels > 0 ? WithChannels(std::move(image), channels) : image;
  }

  // Returns the shape of every image that Read returns, if it is the same for
  // all and known.
  std::optional<ImageShape> shape() const {
    std::optional<ImageShape> shape = data_.shape();
    if (!shape.has_value()) return shape;
    if (options_.height > 0) {
      shape->height = options_.height;
      shape->width = options_.width;
    }
    if (options_.channels > 0) shape->channels = options_.channels;
    return shape;
  }

 private:
  Image Resize(const Image& image) {
    down_.Compute({image.height, options_.height, 0, options_.height},
                  Interpolation::kBilinear);
    across_.Compute({image.width, options_.width, 0, options_.width},
                    Interpolation::kBilinear);
    resizer_.Begin(down_, across_, image.channels);
    resizer_.Add(RowsOf(image));
    Image resized = {options_.height, options_.width, image.channels, {}};
    resized.pixels.reserve(resized.shape().size());
    resizer_.Finish([&](int64_t, const uint8_t* values) {
      resized.pixels.insert(resized.pixels.end(), values,
                            values + resized.width * resized.channels);
    });
    return resized;
  }

  const Dataset& data_;
  const ExportOptions& options_;
  const int64_t count_;
  AxisWeights down_, across_;
  Resizer resizer_;
};

// Writes image folders and lists.

absl::Status WriteImage(const Image& image, const ExportOptions& options,
                        const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string bytes,
      options.jpeg ? EncodeJpeg(image, options.quality) : EncodePng(image));
  OutputFile file(path);
  file.Write(bytes);
  return file.Close();
}

// Returns the name of the file of image i.
std::string FileName(const Part& part, int64_t i,
                     const ExportOptions& options) {
  const int digits = std::max<int>(
      5, static_cast<int>(absl::StrCat(part.data().size() - 1).size()));
  return absl::StrFormat("%0*d.%s", digits, part.index(i),
                         options.jpeg ? "jpg" : "png");
}

std::vector<std::string> FolderNames(const Dataset& data) {
  const auto digits =
      static_cast<int>(absl::StrCat(data.num_classes() - 1).size());
  std::vector<std::string> names;
  for (int label = 0; label < data.num_classes(); ++label) {
    const std::string name = data.class_name(label);
    names.push_back(name == absl::StrCat(label)
                        ? absl::StrFormat("%0*d", digits, label)
                        : absl::StrReplaceAll(name, {{"/", "_"}}));
  }
  return names;
}

absl::Status WriteFolder(Part& part, const std::string& name,
                         const ExportOptions& options, const std::string& dir,
                         ExportStep step) {
  const std::vector<std::string> classes = FolderNames(part.data());
  for (int64_t i = 0; i < part.count(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(step(name, i, part.count()));
    LOCKSTEP_ASSIGN_OR_RETURN(const Image image, part.Read(i));
    const std::string folder =
        absl::StrCat(dir, "/", name, "/", classes[part.label(i)]);
    LOCKSTEP_RETURN_IF_ERROR(MakeFolder(folder));
    LOCKSTEP_RETURN_IF_ERROR(WriteImage(
        image, options, absl::StrCat(folder, "/", FileName(part, i, options))));
  }
  return absl::OkStatus();
}

absl::Status WriteList(Part& part, const std::string& name,
                       const ExportOptions& options, const std::string& dir,
                       ExportStep step) {
  LOCKSTEP_RETURN_IF_ERROR(MakeFolder(absl::StrCat(dir, "/", name)));
  OutputFile list(absl::StrCat(dir, "/", name, "_list.txt"));
  for (int64_t i = 0; i < part.count(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(step(name, i, part.count()));
    LOCKSTEP_ASSIGN_OR_RETURN(const Image image, part.Read(i));
    const std::string path =
        absl::StrCat(name, "/", FileName(part, i, options));
    LOCKSTEP_RETURN_IF_ERROR(
        WriteImage(image, options, absl::StrCat(dir, "/", path)));
    list.Write(absl::StrCat(path, " ", part.label(i), "\n"));
  }
  return list.Close();
}

// Writes CIFAR-10's files.

constexpr int64_t kTrainFiles = 5;

absl::Status CifarError(absl::string_view what) {
  return FlagError("format", "cifar10", what);
}

absl::Status CheckCifarShape(const ImageShape& shape, absl::string_view which) {
  if (shape == ImageShape{kCifarSide, kCifarSide, 3}) return absl::OkStatus();
  return CifarError(absl::StrFormat(
      "holds images of 32 x 32 with 3 channels, but %s %d x %d with %d; "
      "--image_size=32 --in_channels=3 converts them",
      which, shape.height, shape.width, shape.channels));
}

// Checks all conditions that are known before images are read.
absl::Status CheckForCifar(const Part& train, const Part& test,
                           const ExportOptions& options) {
  const int classes = train.data().num_classes();
  if (classes > kCifarClasses) {
    return CifarError(absl::StrCat("holds at most ", kCifarClasses,
                                   " classes, but the data set has ", classes));
  }
  if (train.count() < kTrainFiles) {
    const std::string what = absl::StrCat(
        "needs at least ", kTrainFiles,
        " images for training, one for each file, not ", train.count());
    return train.count() == train.data().size()
               ? CifarError(what)
               : FlagError("limit", *options.limit,
                           absl::StrCat("--format=cifar10 ", what));
  }
  if (train.count() > kTrainFiles * kMaxCifarRecords ||
      test.count() > kMaxCifarRecords) {
    return CifarError(
        absl::StrCat("holds at most ", kTrainFiles * kMaxCifarRecords,
                     " images for training and ", kMaxCifarRecords,
                     " for testing; the data set has ", train.count(), " and ",
                     test.count(), "; --limit exports fewer"));
  }
  for (const Part* part : {&train, &test}) {
    const std::optional<ImageShape> shape = part->shape();
    if (shape.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(CheckCifarShape(*shape, "the data set's are"));
    }
  }
  return absl::OkStatus();
}

// Writes the part's images [begin, end) to the file at `path`.
absl::Status WriteCifarFile(Part& part, const std::string& name, int64_t begin,
                            int64_t end, const std::string& path,
                            ExportStep step) {
  OutputFile file(path);
  std::string record;
  for (int64_t i = begin; i < end; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(step(name, i, part.count()));
    LOCKSTEP_ASSIGN_OR_RETURN(const Image image, part.Read(i));
    LOCKSTEP_RETURN_IF_ERROR(CheckCifarShape(
        image.shape(),
        absl::StrCat("image ", part.index(i), " of ", name, " is")));
    record.clear();
    AppendCifar10Record(image, part.label(i), record);
    file.Write(record);
  }
  return file.Close();
}

absl::Status WriteCifar(Part& train, Part& test, const std::string& dir,
                        ExportStep step) {
  LOCKSTEP_RETURN_IF_ERROR(MakeFolder(dir));
  for (int64_t file = 0; file < kTrainFiles; ++file) {
    LOCKSTEP_RETURN_IF_ERROR(WriteCifarFile(
        train, "train", file * train.count() / kTrainFiles,
        (file + 1) * train.count() / kTrainFiles,
        absl::StrCat(dir, "/data_batch_", file + 1, ".bin"), step));
  }
  return WriteCifarFile(test, "test", 0, test.count(), dir + "/test_batch.bin",
                        step);
}

// Returns a note about classes without images in `train`, which readers of the
// export cannot count. "" if the readers need no note.
std::string DescribeMissingClasses(const Part& train, const Part& test,
                                   ExportFormat format) {
  if (format == ExportFormat::kCifar10) return "";
  const int classes = train.data().num_classes();
  std::vector<bool> has(classes);
  int most = 0;
  for (int64_t i = 0; i < train.count(); ++i) {
    has[train.label(i)] = true;
    most = std::max(most, train.label(i));
  }
  if (format == ExportFormat::kImageList) {
    if (most + 1 == classes) return "";
    return absl::StrCat(
        "the last of ", classes,
        " classes has no image for training: read the list with --num_classes=",
        classes);
  }
  for (int64_t i = 0; i < test.count(); ++i) {
    if (has[test.label(i)]) continue;
    return absl::StrCat("class '", test.data().class_name(test.label(i)),
                        "' has images only for testing, which "
                        "--dataset=image_folder refuses");
  }
  const auto missing = std::ranges::count(has, false);
  if (missing == 0) return "";
  return absl::StrCat(missing, " of ", classes,
                      " classes have no image, and --dataset=image_folder "
                      "numbers the others from 0");
}

}  // namespace

absl::StatusOr<ExportSummary> ExportDataset(const DatasetParts& parts,
                                            const ExportOptions& options,
                                            const std::string& dir,
                                            ExportStep step) {
  Part train(*parts.train, options);
  Part test(*parts.test, options);
  if (options.format == ExportFormat::kCifar10) {
    LOCKSTEP_RETURN_IF_ERROR(CheckForCifar(train, test, options));
    LOCKSTEP_RETURN_IF_ERROR(WriteCifar(train, test, dir, step));
  } else if (options.format == ExportFormat::kImageList) {
    LOCKSTEP_RETURN_IF_ERROR(WriteList(train, "train", options, dir, step));
    LOCKSTEP_RETURN_IF_ERROR(WriteList(test, "val", options, dir, step));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(WriteFolder(train, "train", options, dir, step));
    LOCKSTEP_RETURN_IF_ERROR(WriteFolder(test, "test", options, dir, step));
  }
  return ExportSummary{train.count(), test.count(),
                       DescribeMissingClasses(train, test, options.format)};
}

ImageProgress::ImageProgress(std::ostream& out, bool rewrite)
    : out_(out), rewrite_(rewrite) {}

void ImageProgress::Show(absl::string_view what, int64_t done, int64_t total,
                         absl::Time now) {
  if (what != what_ || total != total_ || done < last_done_) {
    what_ = std::string(what);
    total_ = total;
    first_done_ = done;
    begin_ = now;
    // The first line covers a whole interval too.
    printed_ = std::max(printed_, now);
  }
  last_done_ = done;
  const absl::Duration interval =
      rewrite_ ? absl::Milliseconds(200) : absl::Seconds(1);
  if (done == first_done_ || now <= begin_ || now - printed_ < interval) return;
  printed_ = now;
  const double rate = static_cast<double>(done - first_done_) /
                      absl::ToDoubleSeconds(now - begin_);
  const std::string line =
      absl::StrFormat("%s: %d of %d images, %.*f images/s, %.0f s left", what,
                      done, total, rate < 10 ? 1 : 0, rate,
                      std::ceil(static_cast<double>(total - done) / rate));
  // The cursor stays at the start of the line, so that an error overwrites the
  // line.
  out_ << (rewrite_ ? absl::StrCat("\x1b[2K", line, "\r")
                    : absl::StrCat(line, "\n"))
       << std::flush;
  shown_ = rewrite_;
}

void ImageProgress::Clear() {
  if (shown_) out_ << "\x1b[2K" << std::flush;
  shown_ = false;
}

}  // namespace lockstep
