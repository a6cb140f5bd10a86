// libFuzzer's entry to the reader that LOCKSTEP_CHECK_TEXT checks, a function
// of protocol_check.h; see CONTRIBUTING.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "conformance/protocol/protocol_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bool accepted = false;
  const std::string wrong = lockstep::LOCKSTEP_CHECK_TEXT(
      std::string(reinterpret_cast<const char*>(data), size), accepted);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
