// The command `export` writes any data set as an image folder, a list or CIFAR
// files.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "models/data/export_dataset.h"
#include "models/data/image.h"
#include "models/data/load_dataset.h"
#include "models/data/transform.h"

ABSL_FLAG(std::string, dataset, "fashion_mnist", lockstep::kDatasetHelp);
ABSL_FLAG(std::string, data_dir, "",
          "the folder of the data set's files (default for fashion_mnist: the "
          "folder of the package dataset-fashion-mnist)");
ABSL_FLAG(std::string, output_dir, "",
          "write this folder, which must be absent or empty; it appears only "
          "once it is complete");
ABSL_FLAG(std::string, format, "image_folder",
          "image_folder  train/CLASS/00000.jpg and test/CLASS/00000.jpg\n"
          "image_list    train/00000.jpg and val/00000.jpg; train_list.txt and "
          "val_list.txt with a path and a label on each line\n"
          "cifar10       data_batch_1.bin to data_batch_5.bin and "
          "test_batch.bin: images of 32 x 32 with 3 channels, at most 10 "
          "classes");
ABSL_FLAG(std::string, encoding, "jpeg",
          "the image files of image_folder and image_list:\n"
          "jpeg  with libjpeg's defaults: colour at half resolution\n"
          "png   without loss");
ABSL_FLAG(int, quality, 95, "the quality of jpeg, 1 to 100");
ABSL_FLAG(std::optional<int64_t>, limit, std::nullopt,
          "export at most this many images of each part, spread evenly over "
          "the part (default: all)");
ABSL_FLAG(std::string, image_size, "0",
          "resize images to this size, as train's --image_size does "
          "(antialiased bilinear): 224, or 192x256, height first. 0 keeps "
          "their size; synthetic then makes images of 224");
ABSL_FLAG(int64_t, in_channels, 0,
          "convert images to this number of channels, 1 or 3; 0: the data "
          "set's number, 3 for image files and synthetic");
ABSL_FLAG(bool, skip_bad_images, false,
          "image_folder, image_list: leave out images that cannot be decoded, "
          "and print their number");
ABSL_FLAG(int, num_classes, 0,
          "the number of classes of image_list and synthetic; 0: the list's "
          "largest label plus 1, and 10 for synthetic");
ABSL_FLAG(double, test_fraction, 0,
          "set aside this share of the training images for testing, drawn by "
          "--seed; 0: keep the data set's own parts");
ABSL_FLAG(uint64_t, seed, 0,
          "seed of synthetic's images, and of the share for testing");

namespace lockstep {
namespace {

Usage ExportUsage() {
  return {
      .command = "export",
      .introduction = R"(export --output_dir=DIR [FLAGS]

Writes a data set as an image folder, an image list or CIFAR-10's files, which
train --dataset=image_folder, image_list or cifar10 --data_dir=DIR reads.
torchvision's ImageFolder reads the image folder, PaddleViT the list. Images
are numbered as in the data set.

  bazel run //models/data:export -- --dataset=fashion_mnist \
      --format=image_folder --image_size=112 --out=photos
)",
      .sections = {{"What to write:",
                    "dataset=NAME data_dir=DIR limit=N image_size in_channels "
                    "skip_bad_images num_classes test_fraction=F seed"},
                   {"How to write it:",
                    "output_dir=DIR format encoding quality"}},
      .ending =
          R"(A line shows how many images are written, images/s and the seconds left. On a
terminal the line is rewritten; otherwise at most one line a second is printed.

Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else. A
failed export leaves nothing behind.
)",
      .aliases = {{"channels", "in_channels"}, {"out", "output_dir"}}};
}

volatile sig_atomic_t interrupted = 0;

// From now on, signals end the export cleanly, so that the temporary folder is
// removed. A signal that is ignored, as by nohup, stays ignored.
void CatchSignals() {
  for (const int signal : {SIGHUP, SIGINT, SIGPIPE, SIGTERM}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(signal, &action, nullptr);
  }
}

// Returns the folder to write, without a slash at its end.
absl::StatusOr<std::filesystem::path> CheckedOutput() {
  if (absl::GetFlag(FLAGS_output_dir).empty()) {
    return absl::InvalidArgumentError("--output_dir: must name a folder");
  }
  const std::filesystem::path output =
      std::filesystem::path(ResolveUserPath(absl::GetFlag(FLAGS_output_dir)) +
                            "/")
          .parent_path();
  std::error_code error;
  if (std::filesystem::exists(output, error)) {
    if (!std::filesystem::is_directory(output, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output_dir: ", output.string(), " is not a folder"));
    }
    if (!std::filesystem::is_empty(output, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--output_dir: ", output.string(), " is not empty"));
    }
  }
  return output;
}

absl::Status ReadImageSize(ExportOptions& options) {
  const std::string text = absl::GetFlag(FLAGS_image_size);
  TransformOptions size;
  const absl::Status status = ParseImageSize(text, size);
  if (!status.ok()) return FlagError("image_size", text, status.message());
  if (size.height * size.width > kMaxPixels) {
    return FlagError("image_size", text,
                     absl::StrCat("has over ", kMaxPixels, " pixels"));
  }
  options.height = size.height;
  options.width = size.width;
  return absl::OkStatus();
}

absl::StatusOr<ExportOptions> CheckedOptions() {
  ExportOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.format,
      ParseName<ExportFormat>("--format", absl::GetFlag(FLAGS_format),
                              {{"image_folder", ExportFormat::kImageFolder},
                               {"image_list", ExportFormat::kImageList},
                               {"cifar10", ExportFormat::kCifar10}}));
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.jpeg, ParseName<bool>("--encoding", absl::GetFlag(FLAGS_encoding),
                                    {{"jpeg", true}, {"png", false}}));
  options.quality = absl::GetFlag(FLAGS_quality);
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--quality", options.quality, 1, 100));
  options.limit = absl::GetFlag(FLAGS_limit);
  if (options.limit.has_value() && *options.limit < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit: ", *options.limit, " is not at least 1"));
  }
  options.channels = absl::GetFlag(FLAGS_in_channels);
  if (options.channels != 0 && options.channels != 1 && options.channels != 3) {
    return FlagError("in_channels", options.channels, "must be 0, 1 or 3");
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadImageSize(options));
  return options;
}

absl::StatusOr<DatasetParts> Load(const ExportOptions& wanted,
                                  ImageProgress& progress) {
  DatasetOptions options;
  if (wanted.channels != 0) options.channels = wanted.channels;
  options.skip_bad_images = absl::GetFlag(FLAGS_skip_bad_images);
  options.progress = [&](int64_t done, int64_t total) {
    progress.Show("checking", done, total, absl::Now());
  };
  options.num_classes = absl::GetFlag(FLAGS_num_classes);
  options.test_fraction = absl::GetFlag(FLAGS_test_fraction);
  options.shape.channels = options.channels;
  if (wanted.height != 0) {
    options.shape.height = wanted.height;
    options.shape.width = wanted.width;
  }
  options.seed = absl::GetFlag(FLAGS_seed);
  return LoadDataset(absl::GetFlag(FLAGS_dataset),
                     ResolveUserPath(absl::GetFlag(FLAGS_data_dir)), options);
}

// Writes the data set beside `output`, and renames it once it is complete.
absl::StatusOr<ExportSummary> WriteAndRename(
    const DatasetParts& parts, const ExportOptions& options,
    const std::filesystem::path& output, ImageProgress& progress) {
  const std::string parent =
      output.has_parent_path() ? output.parent_path().string() : ".";
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return absl::ErrnoToStatus(error.value(), parent);
  CatchSignals();
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TemporaryFolder temporary,
      TemporaryFolder::Create("." + output.filename().string(), parent));
  // The export goes to a subfolder with ordinary permissions, since only this
  // user can access the temporary folder.
  const std::string partial = temporary.path() + "/partial";
  const auto step = [&](absl::string_view part, int64_t done, int64_t total) {
    if (interrupted != 0) return absl::CancelledError("interrupted");
    progress.Show(part, done, total, absl::Now());
    return absl::OkStatus();
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const ExportSummary summary,
                            ExportDataset(parts, options, partial, step));
  if (std::rename(partial.c_str(), output.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, output.string());
  }
  return summary;
}

absl::Status Export(std::span<char* const>) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::filesystem::path output,
                            CheckedOutput());
  LOCKSTEP_ASSIGN_OR_RETURN(const ExportOptions options, CheckedOptions());
  ImageProgress progress(std::cout, isatty(STDOUT_FILENO) == 1);
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts, Load(options, progress));
  LOCKSTEP_ASSIGN_OR_RETURN(const ExportSummary summary,
                            WriteAndRename(parts, options, output, progress));
  progress.Clear();
  if (!parts.skipped.empty()) {
    absl::PrintF("%s\n", SkippedText(parts.skipped));
  }
  if (!summary.note.empty()) absl::PrintF("Note: %s\n", summary.note);
  absl::PrintF("Wrote %d images for training and %d for testing to %s\n",
               summary.train, summary.test, output.string());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const lockstep::FileSizeSignalBlock block;
  return lockstep::CommandMain(lockstep::ExportUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::Export);
}
