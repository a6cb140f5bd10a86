// The command `export`: any data set as an image folder.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/load_dataset.h"

ABSL_FLAG(std::string, dataset, "fashion_mnist", lockstep::kDatasetHelp);
ABSL_FLAG(std::string, data_dir, "",
          "the folder of its files (default, of fashion_mnist: where the "
          "package dataset-fashion-mnist installs it)");
ABSL_FLAG(std::string, output_dir, "",
          "the image folder to write; must be absent or empty, and appears "
          "only once it is complete");
ABSL_FLAG(std::string, format, "jpeg",
          "jpeg  as libjpeg's defaults have it, colour at half resolution\n"
          "png   every pixel as it is");
ABSL_FLAG(int, quality, 95, "of jpeg, 1 to 100");
ABSL_FLAG(std::optional<int64_t>, limit, std::nullopt,
          "at most so many images of each part, spread evenly over it "
          "(default: all)");
ABSL_FLAG(int, in_channels, 3,
          "image_folder, image_list, synthetic: 3 for colour, 1 for grey");
ABSL_FLAG(bool, skip_bad_images, false,
          "image_folder, image_list: leave out images that cannot be decoded, "
          "and say how many");
ABSL_FLAG(int, image_size, 224, "synthetic: height and width");
ABSL_FLAG(int, num_classes, 0,
          "image_list, synthetic: the number of classes; 0: what the list's "
          "labels say, 10");
ABSL_FLAG(uint64_t, seed, 0, "synthetic: what its images are drawn from");

namespace lockstep {
namespace {

Usage ExportUsage() {
  return {
      .command = "export",
      .introduction = R"(export --output_dir=DIR [FLAGS]

Writes a data set as an image folder: DIR/train/CLASS/00000.jpg and so on, and
DIR/test/CLASS/..., numbered as in the data set, which --dataset=image_folder
and torchvision's ImageFolder read.

  bazel run //models/data:export -- --output_dir=/tmp/fashion
)",
      .sections = {{"What to write:",
                    "dataset=NAME data_dir=DIR limit=N in_channels "
                    "skip_bad_images image_size num_classes seed"},
                   {"How:", "output_dir=DIR format quality"}},
      .ending =
          R"(Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else, which
leaves nothing behind.
)",
      .aliases = {{"channels", "in_channels"}, {"out", "output_dir"}}};
}

volatile sig_atomic_t interrupted = 0;

struct Format {
  bool jpeg = true;
  int quality = 95;
};

absl::Status WriteImage(const Image& image, const Format& format,
                        const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string bytes,
      format.jpeg ? EncodeJpeg(image, format.quality) : EncodePng(image));
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno != 0 ? errno : EIO,
                             absl::StrCat(path, ": cannot write"));
}

// The folder of each class. Numbers have as many digits as the largest, so that
// their order is that of the labels.
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

// Writes the part `name` below `dir`, and returns how many images it has.
absl::StatusOr<int64_t> WritePart(const Dataset& data, const std::string& name,
                                  const std::optional<int64_t>& limit,
                                  const Format& format,
                                  const std::string& dir) {
  const std::vector<std::string> classes = FolderNames(data);
  const int64_t count = std::min(limit.value_or(data.size()), data.size());
  const int digits =
      std::max<int>(5, static_cast<int>(absl::StrCat(data.size() - 1).size()));
  for (int64_t i = 0; i < count; ++i) {
    if (interrupted != 0) return absl::CancelledError("interrupted");
    const int64_t index = i * data.size() / count;
    LOCKSTEP_ASSIGN_OR_RETURN(const Image image, data.Read(index));
    const std::string folder =
        absl::StrCat(dir, "/", name, "/", classes[data.label(index)]);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return absl::ErrnoToStatus(error.value(), folder);
    LOCKSTEP_RETURN_IF_ERROR(
        WriteImage(image, format,
                   absl::StrFormat("%s/%0*d.%s", folder, digits, index,
                                   format.jpeg ? "jpg" : "png")));
    if ((i + 1) % 10'000 == 0) {
      absl::PrintF("%s: %d of %d images\n", name, i + 1, count);
      std::fflush(stdout);
    }
  }
  return count;
}

absl::StatusOr<Format> CheckedFormat() {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const bool jpeg, ParseName<bool>("--format", absl::GetFlag(FLAGS_format),
                                       {{"jpeg", true}, {"png", false}}));
  const int quality = absl::GetFlag(FLAGS_quality);
  LOCKSTEP_RETURN_IF_ERROR(CheckRange("--quality", quality, 1, 100));
  return Format{jpeg, quality};
}

absl::StatusOr<DatasetParts> Load() {
  DatasetOptions options;
  options.channels = absl::GetFlag(FLAGS_in_channels);
  options.skip_bad_images = absl::GetFlag(FLAGS_skip_bad_images);
  options.num_classes = absl::GetFlag(FLAGS_num_classes);
  const int side = absl::GetFlag(FLAGS_image_size);
  options.shape = {side, side, options.channels};
  options.seed = absl::GetFlag(FLAGS_seed);
  return LoadDataset(absl::GetFlag(FLAGS_dataset),
                     UserPath(absl::GetFlag(FLAGS_data_dir)), options);
}

absl::Status Export(std::span<char* const>) {
  if (absl::GetFlag(FLAGS_output_dir).empty()) {
    return absl::InvalidArgumentError("--output_dir: must name a folder");
  }
  // Without a slash at its end.
  const std::filesystem::path output =
      std::filesystem::path(UserPath(absl::GetFlag(FLAGS_output_dir)) + "/")
          .parent_path();
  LOCKSTEP_ASSIGN_OR_RETURN(const Format format, CheckedFormat());
  const std::optional<int64_t> limit = absl::GetFlag(FLAGS_limit);
  if (limit.has_value() && *limit < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit: ", *limit, " is not at least 1"));
  }
  std::error_code error;
  if (std::filesystem::exists(output, error) &&
      !std::filesystem::is_empty(output, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--output_dir: ", output.string(), " is not empty"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts, Load());
  const std::string parent =
      output.has_parent_path() ? output.parent_path().string() : ".";
  std::filesystem::create_directories(parent, error);
  if (error) return absl::ErrnoToStatus(error.value(), parent);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TemporaryFolder temporary,
      TemporaryFolder::Create("." + output.filename().string(), parent));
  // In it, since it is this user's alone.
  const std::string partial = temporary.path() + "/partial";
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t train,
      WritePart(*parts.train, "train", limit, format, partial));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t test,
      WritePart(*parts.test, "test", limit, format, partial));
  if (std::rename(partial.c_str(), output.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, output.string());
  }
  if (!parts.skipped.empty()) {
    absl::PrintF("skipped %d bad images; the first: %s\n", parts.skipped.size(),
                 parts.skipped[0]);
  }
  absl::PrintF("Wrote %d images for training and %d for testing to %s\n", train,
               test, output.string());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  // So that the temporary folder goes.
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = [](int) { lockstep::interrupted = 1; };
    sigaction(signal, &action, nullptr);
  }
  const lockstep::FileSizeSignalBlock block;
  return lockstep::CommandMain(lockstep::ExportUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::Export);
}
