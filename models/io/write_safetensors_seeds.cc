// Writes the initial corpus of safetensors_fuzzer to a folder.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "models/io/fuzz_inputs.h"
#include "models/io/safetensors_check.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "write_safetensors_seeds FOLDER\n");
    return 2;
  }
  const absl::Status status =
      lockstep::WriteSeeds(argv[1], lockstep::SafetensorsSeeds());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
