// The paths of image files. A data set may have millions.
#ifndef LOCKSTEP_MODELS_DATA_IMAGE_INDEX_H_
#define LOCKSTEP_MODELS_DATA_IMAGE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct ImageFile {
  std::string path;
  int label = 0;
  bool operator==(const ImageFile&) const = default;
};

// Paths and labels in order. Memory: 16 bytes and the name for each file, and
// up to twice as much while the index grows; also two copies of each folder's
// path.
class ImageIndex {
 public:
  // Adds a file. path: the part before its last slash is the folder.
  void Add(absl::string_view path, int label);
  // Adds the file `name` of a folder. folder: "" if the path has no folder,
  // otherwise a path that ends with a slash.
  void Add(absl::string_view folder, absl::string_view name, int label);

  int64_t size() const { return static_cast<int64_t>(files_.size()); }
  // index: in [0, size()).
  std::string path(int64_t index) const;
  int label(int64_t index) const { return files_[index].label; }
  ImageFile operator[](int64_t index) const {
    return {path(index), label(index)};
  }

  // Returns an index of the files at these indices, in their order.
  ImageIndex Choose(const std::vector<int64_t>& indices) const;

 private:
  struct File {
    uint64_t name_begin;  // In names_; ends where the next name begins.
    uint32_t folder;      // In folders_.
    int32_t label;
  };

  absl::string_view name(int64_t index) const;
  uint32_t FolderNumber(absl::string_view folder);

  std::vector<File> files_;
  std::string names_;
  std::vector<std::string> folders_;
  std::unordered_map<std::string, uint32_t> folder_numbers_;
};

// Returns the names of the folders in `dir`, and of links to folders, sorted.
// Errors: the file system's, with `dir`.
absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& dir);

// Adds the files named .jpg, .jpeg or .png at any depth below `dir`, in
// torchvision's order: folders by path, the files of each by name, both by
// their bytes. Links are followed; a link without a target counts as a file.
// Cost: a read of each folder and a stat of each link. If the file system does
// not report types of entries, also a stat of each file.
//
// Errors: the file system's, with the folder; kInvalidArgument, with the path,
// if a link leads to a folder above it, or no file was found.
absl::Status AddImagesBelow(const std::string& dir, int label,
                            ImageIndex& index);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IMAGE_INDEX_H_
