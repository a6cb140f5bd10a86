#include "models/data/image_files.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "models/data/image_index.h"
#include "models/data/load_dataset.h"

namespace lockstep {
namespace {

// Larger than any picture of kMaxPixels, and than the list of any data set.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

class FileDataset final : public Dataset {
 public:
  FileDataset(ImageIndex files, int num_classes, int64_t channels,
              std::vector<std::string> class_names)
      : files_(std::move(files)),
        num_classes_(num_classes),
        channels_(channels),
        class_names_(std::move(class_names)) {}

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int num_classes() const override { return num_classes_; }
  int label(int64_t index) const override { return files_.label(index); }
  std::optional<ImageShape> shape() const override { return std::nullopt; }
  std::string class_name(int label) const override {
    return class_names_.empty() ? Dataset::class_name(label)
                                : class_names_[label];
  }

  std::string file(int64_t index) const override { return files_.path(index); }

  // The two steps of Read. path: the result of file(); bytes: of ReadBytes.
  static absl::StatusOr<std::string> ReadBytes(const std::string& path) {
    return NamingFile(path,
                      [&] { return ReadForeignFile(path, kMaxFileBytes); });
  }
  absl::StatusOr<Image> Decode(const std::string& path,
                               const std::string& bytes) const {
    return NamingFile(path, [&]() -> absl::StatusOr<Image> {
      LOCKSTEP_ASSIGN_OR_RETURN(Image image, DecodeImage(bytes, path));
      return WithChannels(std::move(image), channels_);
    });
  }

  absl::StatusOr<Image> Read(int64_t index) const override {
    const std::string path = file(index);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(path));
    return Decode(path, bytes);
  }

  absl::Status ReadRegion(int64_t index, ChooseRegion choose,
                          TakeRows take) const override {
    const std::string path = file(index);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(path));
    return NamingFile(path,
                      [&] { return DecodeRegion(bytes, path, choose, take); });
  }

  const ImageIndex& files() const { return files_; }

 private:
  // Returns the result of `read`. If memory runs out in `read`, the error names
  // the file.
  template <typename Read>
  static auto NamingFile(const std::string& path, const Read& read)
      -> decltype(read()) {
    try {
      return read();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": no memory to load it"));
    }
  }

  absl::Status DecodeRegion(const std::string& bytes, const std::string& path,
                            ChooseRegion choose, TakeRows take) const {
    return DecodeImageRegion(
        bytes, path,
        [&](ImageShape shape) {
          shape.channels = channels_;
          return choose(shape);
        },
        [&](const PixelRows& rows) {
          if (rows.channels == channels_) return take(rows);
          Image piece;
          AppendRows(rows, piece);
          piece = WithChannels(std::move(piece), channels_);
          take(RowsOf(piece));
        });
  }

  ImageIndex files_;
  int num_classes_;
  int64_t channels_;
  std::vector<std::string> class_names_;
};

// The result of checking an image. Bad bytes are bad on every rank. A file that
// cannot be read here may still be readable on another rank, so it is no bad
// image.
struct ImageVerdict {
  absl::Status status = absl::OkStatus();
  bool is_bad_image = false;
};

ImageVerdict CheckImage(const FileDataset& data, int64_t index) {
  const std::string path = data.file(index);
  const absl::StatusOr<std::string> bytes = FileDataset::ReadBytes(path);
  if (!bytes.ok()) return {bytes.status(), false};
  const absl::Status status = data.Decode(path, *bytes).status();
  return {status, absl::IsDataLoss(status) || absl::IsInvalidArgument(status)};
}

// Checks every image. Returns the verdicts in the images' order.
std::vector<ImageVerdict> CheckImages(const FileDataset& data,
                                      const DatasetOptions& options) {
  std::vector<ImageVerdict> verdicts(data.size());
  std::atomic<int64_t> next = 0;
  const auto work = [&](bool reports) {
    for (int64_t i = next++; i < data.size(); i = next++) {
      verdicts[i] = CheckImage(data, i);
      if (reports && options.progress) options.progress(i, data.size());
    }
  };
  const int threads = options.threads > 0 ? options.threads : UsableCores();
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  if (options.progress) options.progress(data.size(), data.size());
  return verdicts;
}

// Returns the data set of the files, or of as many as the option says, without
// the bad images if they are to be skipped. `name`: the source of the files.
absl::StatusOr<std::unique_ptr<const Dataset>> MakePart(
    const std::string& name, ImageIndex files, int num_classes,
    const std::vector<std::string>& class_names, absl::string_view flag,
    const std::optional<int64_t>& samples, const DatasetOptions& options,
    std::vector<std::string>& skipped) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count,
                            SampleCount(flag, samples, files.size()));
  if (count < files.size()) {
    files = files.Choose(SpreadIndices(count, files.size()));
  }
  auto data = std::make_unique<FileDataset>(std::move(files), num_classes,
                                            options.channels, class_names);
  if (!options.skip_bad_images) return data;
  const std::vector<ImageVerdict> verdicts = CheckImages(*data, options);
  std::vector<int64_t> good;
  for (int64_t i = 0; i < count; ++i) {
    const absl::Status& status = verdicts[i].status;
    if (status.ok()) {
      good.push_back(i);
    } else if (verdicts[i].is_bad_image) {
      skipped.emplace_back(status.message());
    } else {
      return status;
    }
  }
  if (good.empty()) {
    return absl::DataLossError(absl::StrCat(
        name, ": all of the ", count,
        " images are bad; the first: ", verdicts[0].status.message()));
  }
  return std::make_unique<FileDataset>(data->files().Choose(good), num_classes,
                                       options.channels, class_names);
}

// Image folders.

// Returns whether the path exists. Errors: the file system's, if it cannot
// tell.
absl::StatusOr<bool> Exists(const std::string& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), path);
  return exists;
}

// Returns the names of the folders of classes.
absl::StatusOr<std::vector<std::string>> ClassNames(const std::string& dir) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<std::string> names, FolderNames(dir));
  if (!names.empty()) return names;
  return absl::InvalidArgumentError(
      absl::StrCat(dir, ": has no folder, but each class needs one"));
}

absl::StatusOr<ImageIndex> FolderFiles(
    const std::string& dir, const std::vector<std::string>& names,
    const std::vector<std::string>& classes) {
  ImageIndex files;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(dir, "/", name);
    const auto at = std::lower_bound(classes.begin(), classes.end(), name);
    if (at == classes.end() || *at != name) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is not a class of the folder train"));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        AddImagesBelow(path, static_cast<int>(at - classes.begin()), files));
  }
  return files;
}

absl::StatusOr<std::string> TestFolder(const std::string& dir) {
  for (const char* const name : {"/test", "/val"}) {
    std::string folder = absl::StrCat(dir, name);
    LOCKSTEP_ASSIGN_OR_RETURN(const bool exists, Exists(folder));
    if (exists) return folder;
  }
  return absl::NotFoundError(absl::StrCat(
      dir,
      ": has neither a folder test nor val; --test_fraction=0.1 takes a "
      "tenth of the images for testing"));
}

// Lists.

absl::StatusOr<ImageIndex> ReadImageList(const std::string& dir,
                                         const std::string& name,
                                         int num_classes) {
  const std::string list = absl::StrCat(dir, "/", name);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                            ReadForeignFile(list, kMaxFileBytes));
  LOCKSTEP_ASSIGN_OR_RETURN(ImageIndex files,
                            ParseImageList(text, list, num_classes, dir));
  for (int64_t i = 0; i < files.size(); ++i) {
    const std::string path = files.path(i);
    const absl::StatusOr<bool> exists = Exists(path);
    if (exists.ok() && *exists) continue;
    const std::string line = absl::StrCat(list, ": line ", i + 1, ": ");
    if (!exists.ok()) {
      return absl::Status(exists.status().code(),
                          absl::StrCat(line, exists.status().message()));
    }
    return absl::NotFoundError(absl::StrCat(line, "there is no ", path));
  }
  return files;
}

}  // namespace

absl::StatusOr<ImageIndex> ParseImageList(absl::string_view text,
                                          const std::string& name,
                                          int num_classes,
                                          const std::string& dir) {
  ImageIndex files;
  const int most = num_classes > 0 ? num_classes : kMaxClasses;
  for (absl::string_view line :
       absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    line = absl::StripAsciiWhitespace(line);
    const auto fault = [&](absl::string_view what) {
      constexpr size_t kShown = 60;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": line ", files.size() + 1, " ", what, ": '",
                       absl::CHexEscape(line.substr(0, kShown)),
                       line.size() > kShown ? "...'" : "'"));
    };
    const size_t blank = line.find_last_of(" \t");
    if (blank == line.npos) return fault("is not a path and a label");
    int label = -1;
    if (!absl::SimpleAtoi(line.substr(blank + 1), &label) || label < 0 ||
        label >= most) {
      return fault(absl::StrCat("has a label that is not a number in [0, ",
                                most - 1, "]"));
    }
    const absl::string_view path =
        absl::StripAsciiWhitespace(line.substr(0, blank));
    if (absl::StrContains(path, '\0')) return fault("has a zero byte");
    const bool joins = !dir.empty() && !absl::StartsWith(path, "/");
    files.Add(joins ? absl::StrCat(dir, "/", path) : path, label);
  }
  return files;
}

absl::StatusOr<DatasetParts> LoadImageFolder(const std::string& dir,
                                             const DatasetOptions& options) {
  const bool splits = options.test_fraction > 0;
  std::string train_dir = absl::StrCat(dir, "/train");
  std::string test_dir;
  if (splits) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool has_train, Exists(train_dir));
    if (!has_train && TestFolder(dir).ok()) {
      return absl::NotFoundError(absl::StrCat(
          dir, ": has a folder test or val, but none named train"));
    }
    if (!has_train) train_dir = dir;
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(test_dir, TestFolder(dir));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> classes,
                            ClassNames(train_dir));
  LOCKSTEP_ASSIGN_OR_RETURN(ImageIndex train,
                            FolderFiles(train_dir, classes, classes));
  const int num_classes = static_cast<int>(classes.size());
  DatasetParts parts;
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.train, MakePart(train_dir, std::move(train), num_classes, classes,
                            "--train_samples", options.train_samples, options,
                            parts.skipped));
  if (splits) return parts;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> test_classes,
                            ClassNames(test_dir));
  LOCKSTEP_ASSIGN_OR_RETURN(ImageIndex test,
                            FolderFiles(test_dir, test_classes, classes));
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.test,
      MakePart(test_dir, std::move(test), num_classes, classes,
               "--test_samples", options.test_samples, options, parts.skipped));
  return parts;
}

absl::StatusOr<DatasetParts> LoadImageList(const std::string& dir,
                                           const DatasetOptions& options) {
  int classes = options.num_classes;
  LOCKSTEP_ASSIGN_OR_RETURN(ImageIndex train,
                            ReadImageList(dir, "train_list.txt", classes));
  if (classes == 0) {
    for (int64_t i = 0; i < train.size(); ++i) {
      classes = std::max(classes, train.label(i) + 1);
    }
  }
  DatasetParts parts;
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.train, MakePart(absl::StrCat(dir, "/train_list.txt"),
                            std::move(train), classes, {}, "--train_samples",
                            options.train_samples, options, parts.skipped));
  if (options.test_fraction > 0) return parts;
  LOCKSTEP_ASSIGN_OR_RETURN(ImageIndex test,
                            ReadImageList(dir, "val_list.txt", classes));
  LOCKSTEP_ASSIGN_OR_RETURN(
      parts.test,
      MakePart(absl::StrCat(dir, "/val_list.txt"), std::move(test), classes, {},
               "--test_samples", options.test_samples, options, parts.skipped));
  return parts;
}

}  // namespace lockstep
