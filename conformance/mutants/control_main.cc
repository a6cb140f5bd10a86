// The command `mutants` over mutants made up to fail it: its control.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutant.h"
#include "conformance/mutants/mutants_command.h"

namespace lockstep {
namespace {

Mutant Made(const std::string& name, absl::StatusOr<Caught> becomes) {
  return {.name = name,
          .planted = "samples are lost",
          .checks = {"Coverage"},
          .says = "is lost",
          .plant = [becomes] { return becomes; }};
}

std::vector<MutantSuite> Suites() {
  return {
      MakeSuite("control", {"Coverage"},
                {Made("Named", Caught{{"Coverage"}, "sample 3 is lost"}),
                 Made("Unnamed", Caught{{"Coverage"}, "4 of 5"}),
                 Made("Survivor", Caught{}),
                 Made("Failed", absl::UnavailableError("rank 1 has gone"))})};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::MutantsCommand({argv, static_cast<size_t>(argc)},
                                  lockstep::Suites());
}
