// Writes the initial corpora of case_fuzzer and rank_output_fuzzer into the
// subfolders `case` and `rank_output` of a folder.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "conformance/protocol/protocol_check.h"
#include "models/io/fuzz_inputs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "write_seeds FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  absl::Status status = lockstep::WriteSeeds(
      folder + "/case", lockstep::conformance::CaseSeeds());
  status.Update(lockstep::WriteSeeds(folder + "/rank_output",
                                     lockstep::conformance::RankOutputSeeds()));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
