// Writes the initial corpora of this folder's fuzzers, each to its own folder
// below the given one.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/data/data_check.h"
#include "models/io/fuzz_inputs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "write_data_seeds FOLDER\n");
    return 2;
  }
  for (const lockstep::DataCheck& check : lockstep::DataChecks()) {
    const absl::Status status = lockstep::WriteSeeds(
        absl::StrCat(argv[1], "/", check.name), check.seeds);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      return 1;
    }
  }
  return 0;
}
