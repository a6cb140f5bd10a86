#include "tools/gpu_bundle/pack.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"

namespace lockstep::gpu_bundle {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 512;

// The header of a file, as POSIX pax(1) describes it. Numbers are octal texts.
struct Header {
  char name[100] = {};
  char mode[8] = "0000644";
  char uid[8] = "0000000";
  char gid[8] = "0000000";
  char size[12] = {};
  char mtime[12] = "00000000000";
  char checksum[8] = {};
  char type = '0';  // A regular file.
  char link[100] = {};
  char magic[6] = "ustar";
  char version[2] = {'0', '0'};
  char owners_and_prefix[247] = {};
};
static_assert(sizeof(Header) == kBlock);

// Returns the header's block.
std::string HeaderBlock(const std::string& name, size_t size) {
  Header header;
  std::copy(name.begin(), name.end(), header.name);
  absl::SNPrintF(header.size, sizeof(header.size), "%011o", size);
  // The checksum is the sum of the header's bytes, with spaces in its place.
  std::memset(header.checksum, ' ', sizeof(header.checksum));
  std::string block(kBlock, '\0');
  std::memcpy(block.data(), &header, sizeof(header));
  unsigned sum = 0;
  for (const char each : block) sum += static_cast<unsigned char>(each);
  absl::SNPrintF(header.checksum, sizeof(header.checksum), "%06o", sum);
  std::memcpy(block.data(), &header, sizeof(header));
  return block;
}

}  // namespace

absl::Status PackFolder(const std::string& folder, const std::string& file) {
  const fs::path parent = fs::path(folder).parent_path();
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file(error)) paths.push_back(entry->path().string());
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot list ", folder, ": ", error.message()));
  }
  std::sort(paths.begin(), paths.end());
  std::string tar;
  for (const std::string& path : paths) {
    const std::string name = fs::path(path).lexically_relative(parent).string();
    if (name.size() > sizeof(Header::name)) continue;
    const absl::StatusOr<std::string> content = ReadFile(path);
    if (!content.ok()) continue;
    tar += HeaderBlock(name, content->size()) + *content;
    tar.resize((tar.size() + kBlock - 1) / kBlock * kBlock);
  }
  tar.resize(tar.size() + 2 * kBlock);  // The end of the file.
  return ReplaceFile(file, tar);
}

}  // namespace lockstep::gpu_bundle
