// The command `mutants` over bugs made up to fail it: its control.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutant.h"
#include "conformance/mutants/mutants_command.h"

namespace lockstep {
namespace {

PlantedBug Bug(const std::string& name, absl::StatusOr<Caught> becomes) {
  return {"control",    name,      "samples are lost",
          {"Coverage"}, "is lost", [becomes] { return becomes; }};
}

std::vector<BugSuite> Suites() {
  return {{"control",
           {"Coverage"},
           {Bug("Named", Caught{{"Coverage"}, "sample 3 is lost"}),
            Bug("Unnamed", Caught{{"Coverage"}, "4 of 5"}),
            Bug("Survivor", Caught{}),
            Bug("Failed", absl::UnavailableError("rank 1 has gone"))}}};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::MutantsCommand({argv, static_cast<size_t>(argc)},
                                  lockstep::Suites());
}
