// The entry point of libFuzzer. LOCKSTEP_CHECK names the function of
// rendezvous_check.h to run; see README.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "collectives/rendezvous/rendezvous_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string wrong = lockstep::LOCKSTEP_CHECK({data, size}).wrong;
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
