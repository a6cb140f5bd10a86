#include "models/train/data_flags.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "models/data/load_dataset.h"
#include "models/data/transform.h"

ABSL_FLAG(std::string, dataset, "fashion_mnist", lockstep::kDatasetHelp);
ABSL_FLAG(std::string, data_dir, "",
          "the folder of the data set's files (default for fashion_mnist: the "
          "folder of the package dataset-fashion-mnist)");
ABSL_FLAG(
    std::optional<int64_t>, train_samples, std::nullopt,
    "train on only N images (default: all, which takes resnet18_d2l minutes an "
    "epoch)");
ABSL_FLAG(double, test_fraction, 0,
          "set aside this share of the training images for testing, drawn by "
          "--seed, in place of the data set's own part for testing; "
          "image_folder then needs no train/ and test/. 0: keep the data set's "
          "own parts");
ABSL_FLAG(int, num_classes, 0,
          "the number of classes of image_list and synthetic; 0: the list's "
          "largest label plus 1, and 10 for synthetic");
ABSL_FLAG(std::string, image_size, "",
          "resize images to this size: 224, or 192x256, height first. 0 keeps "
          "their size, which is the default for data sets of one size; for "
          "image files the default is 224");
ABSL_FLAG(
    int64_t, resize, 0,
    "resize the shorter side to this many pixels and cut --image_size out "
    "of the middle, as evaluations of ImageNet do with 256; 0: resize "
    "directly to --image_size. Training with resized_crop ignores it");
ABSL_FLAG(std::string, interpolation, "bilinear",
          "how images are resized: bilinear or bicubic, both antialiased");
ABSL_FLAG(int64_t, in_channels, 0,
          "convert images to this number of channels, 1 or 3; 0: the data "
          "set's number, 3 for image files. synthetic: 1 to 64");
ABSL_FLAG(std::string, augment, "none",
          "how training images are augmented, separated by commas:\n"
          "none, standard (resized_crop,flip), resized_crop[:MIN[:MAX]], "
          "crop[:PADDING], flip[:P], erase[:P], jitter[:B[:C[:S[:H]]]], "
          "mixup[:ALPHA], cutmix[:ALPHA]");
ABSL_FLAG(std::string, mean, "",
          "subtract this from pixels in [0, 1]: a number, a number for each "
          "channel, or imagenet");
ABSL_FLAG(std::string, std, "", "then divide by this, in the same form");
ABSL_FLAG(int, workers, 0,
          "number of threads of each rank that load images ahead of the step; "
          "0: the rank loads images itself");
ABSL_FLAG(int64_t, loader_mb, 256,
          "load at most this many MiB of batches ahead on each rank");
ABSL_FLAG(bool, skip_bad_images, false,
          "decode every image file first, leave out those that cannot be "
          "decoded, and print their number; otherwise one is an error");

namespace lockstep {
namespace {

// Returns `status` of parsing a flag, prefixed with the flag.
absl::Status WithFlagName(absl::string_view name, const std::string& value,
                          const absl::Status& status) {
  return status.ok() ? status : FlagError(name, value, status.message());
}

absl::Status ReadTransform(const std::string& dataset,
                           TransformOptions& transform) {
  const bool files = dataset == "image_folder" || dataset == "image_list";
  std::string size = absl::GetFlag(FLAGS_image_size);
  if (size.empty()) size = files ? "224" : "0";
  LOCKSTEP_RETURN_IF_ERROR(
      WithFlagName("image_size", size, ParseImageSize(size, transform)));
  transform.shorter_side = absl::GetFlag(FLAGS_resize);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--resize", transform.shorter_side, 0, kMaxSide));
  if (transform.shorter_side > 0 && transform.height == 0) {
    return FlagError("resize", transform.shorter_side,
                     "needs an --image_size to cut out");
  }
  const int64_t longest = std::max(transform.height, transform.width);
  if (transform.shorter_side > 0 && transform.shorter_side < longest) {
    return FlagError("resize", transform.shorter_side,
                     absl::StrCat("must be at least the ", longest,
                                  " pixels of --image_size"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      transform.interpolation,
      ParseName<Interpolation>("--interpolation",
                               absl::GetFlag(FLAGS_interpolation),
                               {{"bilinear", Interpolation::kBilinear},
                                {"bicubic", Interpolation::kBicubic}}));
  transform.channels = absl::GetFlag(FLAGS_in_channels);
  // The synthetic data set makes images of any number of channels.
  if (dataset != "synthetic" && transform.channels != 0 &&
      transform.channels != 1 && transform.channels != 3) {
    return FlagError("in_channels", transform.channels, "must be 0, 1 or 3");
  }
  const std::string mean = absl::GetFlag(FLAGS_mean);
  LOCKSTEP_RETURN_IF_ERROR(
      WithFlagName("mean", mean,
                   ParseMeanAndStd(mean, absl::GetFlag(FLAGS_std), transform)));
  const std::string augment = absl::GetFlag(FLAGS_augment);
  return WithFlagName("augment", augment,
                      ParseAugmentation(augment, transform));
}

}  // namespace

absl::StatusOr<DataFlags> ReadDataFlags(uint64_t seed) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--workers", absl::GetFlag(FLAGS_workers), 0, 256));
  LOCKSTEP_RETURN_IF_ERROR(CheckRange(
      "--loader_mb", absl::GetFlag(FLAGS_loader_mb), 1, int64_t{1} << 31));
  DataFlags flags = {.dataset = absl::GetFlag(FLAGS_dataset)};
  if (const std::string dir = absl::GetFlag(FLAGS_data_dir); !dir.empty()) {
    flags.dir = ResolveUserPath(dir);
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadTransform(flags.dataset, flags.transform));
  DatasetOptions& options = flags.options;
  options.train_samples = absl::GetFlag(FLAGS_train_samples);
  options.test_fraction = absl::GetFlag(FLAGS_test_fraction);
  options.num_classes = absl::GetFlag(FLAGS_num_classes);
  options.skip_bad_images = absl::GetFlag(FLAGS_skip_bad_images);
  options.seed = seed;
  const TransformOptions& transform = flags.transform;
  if (transform.channels != 0) options.channels = transform.channels;
  if (flags.dataset == "synthetic") {
    options.shape.channels = options.channels;
    if (transform.height > 0) {
      options.shape.height = transform.height;
      options.shape.width = transform.width;
    }
  }
  flags.loader.workers = absl::GetFlag(FLAGS_workers);
  flags.loader.max_bytes = absl::GetFlag(FLAGS_loader_mb) << 20;
  return flags;
}

}  // namespace lockstep
