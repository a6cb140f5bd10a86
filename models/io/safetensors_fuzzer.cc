// libFuzzer's entry to the reader of safetensors; see CONTRIBUTING.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "models/io/safetensors_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bool accepted = false;
  const std::string wrong = lockstep::CheckSafetensors(
      std::string(reinterpret_cast<const char*>(data), size), accepted);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
