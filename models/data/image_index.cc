#include "models/data/image_index.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

bool IsImageName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".jpg") ||
         absl::EndsWithIgnoreCase(name, ".jpeg") ||
         absl::EndsWithIgnoreCase(name, ".png");
}

// Returns whether an entry of `parent`, whose path is `path`, is a folder or a
// link to a folder. A link without a target is no folder. Errors: the file
// system's, if it cannot follow a link.
absl::StatusOr<bool> IsFolder(const std::string& path, DIR* parent,
                              const dirent& entry) {
  if (entry.d_type == DT_DIR) return true;
  if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return false;
  struct stat info = {};
  if (fstatat(dirfd(parent), entry.d_name, &info, /*flags=*/0) == 0) {
    return S_ISDIR(info.st_mode);
  }
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return false;
  return absl::ErrnoToStatus(errno, absl::StrCat(path, "/", entry.d_name));
}

// The folders and images in one folder, each sorted by name.
struct FolderContent {
  std::pair<dev_t, ino_t> identity = {};
  std::vector<std::string> folders = {};
  std::vector<std::string> images = {};
};

absl::StatusOr<FolderContent> ReadFolder(const std::string& path) {
  const OpenFolder folder(opendir(path.c_str()));
  struct stat info = {};
  if (folder == nullptr || fstat(dirfd(folder.get()), &info) != 0) {
    return absl::ErrnoToStatus(errno, path);
  }
  FolderContent content = {.identity = {info.st_dev, info.st_ino}};
  errno = 0;
  while (const dirent* const entry = readdir(folder.get())) {
    const absl::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const bool is_folder,
                              IsFolder(path, folder.get(), *entry));
    if (is_folder) {
      content.folders.emplace_back(name);
    } else if (IsImageName(name)) {
      content.images.emplace_back(name);
    }
    errno = 0;  // A link without a target set errno, but is no error.
  }
  if (errno != 0) return absl::ErrnoToStatus(errno, path);
  std::ranges::sort(content.folders);
  std::ranges::sort(content.images);
  return content;
}

// Walks folders recursively and collects the folders that have images.
class FolderWalk {
 public:
  // dir: the first folder to visit.
  explicit FolderWalk(const std::string& dir) {
    struct stat info = {};
    for (std::string path = dir + "/.."; stat(path.c_str(), &info) == 0;
         path += "/..") {
      const std::pair<dev_t, ino_t> identity = {info.st_dev, info.st_ino};
      if (!ancestors_.empty() && ancestors_.back() == identity)
        break;  // The root.
      ancestors_.push_back(identity);
    }
  }

  absl::Status Visit(const std::string& path) {
    LOCKSTEP_ASSIGN_OR_RETURN(FolderContent content, ReadFolder(path));
    if (std::ranges::find(ancestors_, content.identity) != ancestors_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is a link to a folder that contains it"));
    }
    ancestors_.push_back(content.identity);
    for (const std::string& name : content.folders) {
      LOCKSTEP_RETURN_IF_ERROR(Visit(absl::StrCat(path, "/", name)));
    }
    ancestors_.pop_back();
    if (!content.images.empty()) {
      found_.emplace_back(path, std::move(content.images));
    }
    return absl::OkStatus();
  }

  // Each folder's path and the names of its images.
  std::vector<std::pair<std::string, std::vector<std::string>>>& found() {
    return found_;
  }

 private:
  std::vector<std::pair<dev_t, ino_t>> ancestors_;
  std::vector<std::pair<std::string, std::vector<std::string>>> found_;
};

}  // namespace

void ImageIndex::Add(absl::string_view path, int label) {
  const size_t slash = path.rfind('/');
  const size_t begin = slash == path.npos ? 0 : slash + 1;
  Add(path.substr(0, begin), path.substr(begin), label);
}

void ImageIndex::Add(absl::string_view folder, absl::string_view name,
                     int label) {
  files_.push_back({names_.size(), FolderNumber(folder), label});
  names_.append(name.data(), name.size());
}

uint32_t ImageIndex::FolderNumber(absl::string_view folder) {
  if (!files_.empty() && folders_[files_.back().folder] == folder) {
    return files_.back().folder;
  }
  const auto [at, is_new] = folder_numbers_.try_emplace(
      std::string(folder), static_cast<uint32_t>(folders_.size()));
  if (is_new) folders_.push_back(at->first);
  return at->second;
}

absl::string_view ImageIndex::name(int64_t index) const {
  const uint64_t begin = files_[index].name_begin;
  const uint64_t end =
      index + 1 < size() ? files_[index + 1].name_begin : names_.size();
  return absl::string_view(names_).substr(begin, end - begin);
}

std::string ImageIndex::path(int64_t index) const {
  return absl::StrCat(folders_[files_[index].folder], name(index));
}

ImageIndex ImageIndex::Choose(const std::vector<int64_t>& indices) const {
  ImageIndex chosen;
  chosen.files_.reserve(indices.size());
  for (const int64_t index : indices) {
    chosen.Add(folders_[files_[index].folder], name(index), label(index));
  }
  return chosen;
}

absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& dir) {
  LOCKSTEP_ASSIGN_OR_RETURN(FolderContent content, ReadFolder(dir));
  return std::move(content.folders);
}

absl::Status AddImagesBelow(const std::string& dir, int label,
                            ImageIndex& index) {
  FolderWalk walk(dir);
  LOCKSTEP_RETURN_IF_ERROR(walk.Visit(dir));
  if (walk.found().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, ": has no .jpg, .jpeg or .png file"));
  }
  std::ranges::sort(walk.found());
  for (const auto& [path, names] : walk.found()) {
    const std::string folder = absl::StrCat(path, "/");
    for (const std::string& name : names) index.Add(folder, name, label);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
