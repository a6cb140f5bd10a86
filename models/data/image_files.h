// Data sets of image files: folders and lists.
#ifndef LOCKSTEP_MODELS_DATA_IMAGE_FILES_H_
#define LOCKSTEP_MODELS_DATA_IMAGE_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/data/image_index.h"
#include "models/data/load_dataset.h"

namespace lockstep {

// Parses the lines of an image list: a path, blanks, a label in [0,
// num_classes), or below kMaxClasses if num_classes is 0. The path ends before
// the last blanks; blanks around it are removed. A path that is not absolute is
// relative to `dir`, unless `dir` is empty. The list must have at least one
// line. Errors begin with `name`.
absl::StatusOr<ImageIndex> ParseImageList(absl::string_view text,
                                          const std::string& name,
                                          int num_classes,
                                          const std::string& dir = "");

// Load an image folder and an image list for LoadDataset. With
// options.test_fraction they load no test part, and LoadDataset splits the
// training part.
absl::StatusOr<DatasetParts> LoadImageFolder(const std::string& dir,
                                             const DatasetOptions& options);
absl::StatusOr<DatasetParts> LoadImageList(const std::string& dir,
                                           const DatasetOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IMAGE_FILES_H_
