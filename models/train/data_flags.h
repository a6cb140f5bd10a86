// The data flags of every command that trains: which data set to load, and how
// to transform its images. A program that links this library has these flags.
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

// The values of the flags: the arguments of LoadDataset(dataset, dir, options),
// and how a trainer transforms and loads the images.
struct DataFlags {
  std::string dataset = {};
  std::string dir = {};  // Resolved by ResolveUserPath.
  DatasetOptions options = {};
  TransformOptions transform = {};
  LoaderOptions loader = {};
};

// The names of the flags, for sections of a usage text.
inline constexpr char kDataFlags[] =
    "dataset data_dir=DIR train_samples=N test_fraction=F num_classes=N "
    "skip_bad_images";
inline constexpr char kImageFlags[] =
    "image_size=SIZE resize=N interpolation=I in_channels=N augment mean=M "
    "std=S workers=N loader_mb=N";

// An alias of one of these flags, for the aliases of a usage text.
inline constexpr std::pair<const char*, const char*> kDataAlias = {
    "channels", "in_channels"};

// Reads the flags; reads no file. seed: the seed of the synthetic data set and
// of --test_fraction. Errors: kInvalidArgument, beginning with the flag.
absl::StatusOr<DataFlags> ReadDataFlags(uint64_t seed);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_DATA_FLAGS_H_
