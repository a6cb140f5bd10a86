// The flags of every command that trains: which data, and what becomes of its
// images. A program that links this has them.
#ifndef LOCKSTEP_MODELS_TRAIN_DATA_FLAGS_H_
#define LOCKSTEP_MODELS_TRAIN_DATA_FLAGS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "models/data/load_dataset.h"
#include "models/data/loader.h"
#include "models/data/transform.h"

namespace lockstep {

// What they say: LoadDataset(dataset, dir, options), and what a trainer does
// with what that loads.
struct DataFlags {
  std::string dataset = {};
  std::string dir = {};  // Not relative to where `bazel run` starts.
  DatasetOptions options = {};
  TransformOptions transform = {};
  LoaderOptions loader = {};
};

// Their names, for sections of a usage.
inline constexpr char kDataFlags[] =
    "dataset data_dir=DIR train_samples=N test_fraction=F num_classes=N "
    "skip_bad_images";
inline constexpr char kImageFlags[] =
    "image_size=SIZE resize=N interpolation=I in_channels=N augment mean=M "
    "std=S workers=N loader_mb=N";

// Another name of one of them, for a usage's aliases.
inline constexpr std::pair<const char*, const char*> kDataAlias = {
    "channels", "in_channels"};

// seed: of the synthetic data set and of --test_fraction. Errors:
// kInvalidArgument, beginning with the flag; nothing is read.
absl::StatusOr<DataFlags> ReadDataFlags(uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_DATA_FLAGS_H_
