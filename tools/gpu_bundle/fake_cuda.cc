// The functions of the driver and of NVIDIA's libraries that run_stages calls.
// Environment variables set the number of GPUs (FAKE_GPUS), whether each is
// exclusive to one process (FAKE_EXCLUSIVE), cuInit's error (FAKE_ERROR), and
// the versions of the driver's CUDA (FAKE_CUDA) and of NCCL (FAKE_NCCL). In a
// folder whose name has "newer", NCCL is 2.30.7.
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

int NumberOr(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) { return NumberOr("FAKE_ERROR", 0); }
int cuDeviceGetCount(int* count) {
  const char* const gpus = std::getenv("FAKE_GPUS");
  if (gpus == nullptr) return 100;  // CUDA_ERROR_NO_DEVICE
  *count = std::atoi(gpus);
  return 0;
}
int cuDeviceGet(int* device, int place) {
  *device = place;
  return 0;
}
int cuDeviceGetName(char* name, int size, int /*device*/) {
  std::strncpy(name, "Fake 9000", static_cast<size_t>(size));
  return 0;
}
int cuDeviceGetAttribute(int* value, int /*attribute*/, int /*device*/) {
  *value = std::getenv("FAKE_EXCLUSIVE") == nullptr ? 0 : 3;
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = NumberOr("FAKE_CUDA", 13000);
  return 0;
}

int ncclGetVersion(int* version) {
  Dl_info own = {};
  dladdr(reinterpret_cast<void*>(&ncclGetVersion), &own);
  const bool newer = std::strstr(own.dli_fname, "newer") != nullptr;
  *version = newer ? 23007 : NumberOr("FAKE_NCCL", 22809);
  return 0;
}
size_t cudnnGetVersion() { return 91900; }

}  // extern "C"
