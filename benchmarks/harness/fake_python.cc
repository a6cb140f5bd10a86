#include "benchmarks/harness/fake_python.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {

std::string MakePython(const std::string& script) {
  static int made = 0;
  const std::string path = absl::StrCat(testing::TempDir(), "/python", ++made);
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace lockstep::benchmarks
