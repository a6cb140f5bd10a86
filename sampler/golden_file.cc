#include "sampler/golden_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

std::vector<int64_t> Ends(const std::vector<int64_t>& items) {
  const auto count = std::min<std::ptrdiff_t>(3, std::ssize(items));
  std::vector<int64_t> ends(items.begin(), items.begin() + count);
  ends.insert(ends.end(), items.end() - count, items.end());
  return ends;
}

uint64_t HashOf(const std::vector<int64_t>& items) {
  uint64_t hash = 0;
  for (const int64_t item : items) {
    hash = GoldenHashStep(hash, static_cast<uint64_t>(item) + 1);
  }
  return hash;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadGoldenLines(
    const std::string& name) {
  const char* const root = std::getenv("TEST_SRCDIR");
  const char* const workspace = std::getenv("TEST_WORKSPACE");
  if (root == nullptr || workspace == nullptr) {
    return absl::NotFoundError("TEST_SRCDIR or TEST_WORKSPACE is not set");
  }
  const std::string path =
      absl::StrCat(root, "/", workspace, "/sampler/testdata/", name);
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

absl::StatusOr<GoldenList> ParseGoldenList(const std::string& kind,
                                           std::istream& record) {
  GoldenList golden;
  golden.hashed = kind == "hash";
  if (golden.hashed) record >> golden.count >> golden.hash;
  if (!record || (!golden.hashed && kind != "list")) {
    return absl::DataLossError(absl::StrCat("bad or short record: ", kind));
  }
  for (int64_t item = 0; record >> item;) golden.items.push_back(item);
  if (!record.eof()) return absl::DataLossError("not a number in a list");
  return golden;
}

absl::Status CheckGoldenList(const GoldenList& golden,
                             const std::vector<int64_t>& items) {
  if (golden.hashed &&
      (std::ssize(items) != golden.count || HashOf(items) != golden.hash)) {
    return absl::DataLossError("hash differs");
  }
  if ((golden.hashed ? Ends(items) : items) != golden.items) {
    return absl::DataLossError("items differ");
  }
  return absl::OkStatus();
}

}  // namespace lockstep
