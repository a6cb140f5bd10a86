// libFuzzer's entry point. LOCKSTEP_CHECK, in LOCKSTEP_NAMESPACE, is the name
// of the function that checks a reader, such as CheckSafetensors; see
// CONTRIBUTING.md.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace LOCKSTEP_NAMESPACE {
std::string LOCKSTEP_CHECK(const std::string& text, bool& accepted);
}  // namespace LOCKSTEP_NAMESPACE

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bool accepted = false;
  const std::string wrong = LOCKSTEP_NAMESPACE::LOCKSTEP_CHECK(
      std::string(reinterpret_cast<const char*>(data), size), accepted);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}
