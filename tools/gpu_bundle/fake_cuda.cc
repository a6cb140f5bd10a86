// The functions of the driver and of NVIDIA's libraries that run_stages calls.
// Environment variables set the number of GPUs (FAKE_GPUS), whether each is
// exclusive to one process (FAKE_EXCLUSIVE), and cuInit's error (FAKE_ERROR).
#include <cstddef>
#include <cstdlib>
#include <cstring>

extern "C" {

int cuInit(unsigned /*flags*/) {
  const char* const error = std::getenv("FAKE_ERROR");
  return error == nullptr ? 0 : std::atoi(error);
}
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

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
size_t cudnnGetVersion() { return 91900; }

}  // extern "C"
