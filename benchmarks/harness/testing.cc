#include "benchmarks/harness/testing.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "report/document.h"

namespace lockstep::benchmarks {

report::Origin ExampleOrigin(const std::string& command) {
  return {.machine = {.cpu = "Example 9000",
                      .cores = 2,
                      .memory_bytes = int64_t{16} << 30,
                      .system = "Linux 6.1"},
          .command = command,
          .commit = "0123456789abcdef0123456789abcdef01234567",
          .created = "2024-05-31T16:20:00Z"};
}

void ExpectNarrow(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

std::string TestPath(const std::string& suffix) {
  return absl::StrCat(
      testing::TempDir(), "/",
      testing::UnitTest::GetInstance()->current_test_info()->name(), suffix);
}

nlohmann::json ReadJson(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(ReadFile(path).value_or(""),
                                              nullptr, /*allow_exceptions=*/
                                              false);
  EXPECT_FALSE(json.is_discarded()) << path;
  return json;
}

std::string MakePython(const std::string& script) {
  static int made = 0;
  const std::string path = absl::StrCat(testing::TempDir(), "/python", ++made);
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace lockstep::benchmarks
