// As much of the driver and of NVIDIA's libraries as run_stages asks: FAKE_GPUS
// in the environment says how many GPUs there are.
#include <cstddef>
#include <cstdlib>
#include <cstring>

extern "C" {

int cuInit(unsigned /*flags*/) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 13020;
  return 0;
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
int cuDeviceGetUuid(void* uuid, int device) {
  for (int i = 0; i < 16; ++i) {
    static_cast<unsigned char*>(uuid)[i] =
        static_cast<unsigned char>(16 * device + i);
  }
  return 0;
}

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
size_t cudnnGetVersion() { return 91900; }

}  // extern "C"
