// A trainer that follows the protocol and computes nothing. Step s draws the
// samples s-1, s, ..., one for each rank, and its loss is its number. With an
// argument, the program plays that many ranks; without, the rank that RANK
// names.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {
namespace {

constexpr int64_t kSteps = 5;  // Of the whole run.

int Variable(const char* name) {
  const char* value = std::getenv(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number : -1;
}

absl::Status PlayRank(const CaseEnvironment& environment, const Case& c,
                      const CaseFiles& files, int rank, int world_size) {
  const std::string checkpoint = environment.output_folder + "/checkpoint";
  int64_t begin = 0;
  if (c.resume && !(std::ifstream(checkpoint + "/steps") >> begin)) {
    return absl::NotFoundError("there is no checkpoint");
  }
  const int64_t end = c.stop_after > 0 ? c.stop_after : kSteps;
  RankOutput output = {.rank = rank,
                       .world_size = world_size,
                       .software = "a trainer for tests"};
  for (int64_t step = begin + 1; step <= end; ++step) {
    output.steps.push_back({.epoch = 0,
                            .indices = {step - 1 + rank},
                            .loss = static_cast<double>(step)});
    for (const auto& [name, tensor] : files.weights.tensors) {
      output.tensors[absl::StrCat("parameter.", step, "/", name)] = tensor;
    }
  }
  if (c.stop_after > 0) {
    std::error_code error;
    std::filesystem::create_directory(checkpoint, error);
    std::ofstream(checkpoint + "/steps") << end;
  } else if (c.evaluate) {
    output.evaluation = {.indices = {rank}, .loss = 1, .accuracy = 1};
  }
  return WriteRankOutput(environment.output_folder, output);
}

absl::Status Play(int argc, char** argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseEnvironment environment,
                            ReadCaseEnvironment());
  LOCKSTEP_ASSIGN_OR_RETURN(const CaseFolder folder,
                            ReadCaseFolder(environment.case_folder));
  if (argc == 1) {
    return PlayRank(environment, folder.c, folder.files, Variable("RANK"),
                    Variable("WORLD_SIZE"));
  }
  const int world_size = std::atoi(argv[1]);
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_RETURN_IF_ERROR(
        PlayRank(environment, folder.c, folder.files, rank, world_size));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep::conformance

int main(int argc, char** argv) {
  const absl::Status status = lockstep::conformance::Play(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
