// A management library for tests: knows every GPU whose UUID does not begin
// with ff. Its clock is 1410 MHz, 3 GiB of its memory are in use, and it draws
// 250 W all the time.
#include <chrono>
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static char gpu;
  constexpr int kNotFound = 6;  // NVML_ERROR_NOT_FOUND.
  if (std::strlen(uuid) != 40 || std::strncmp(uuid, "GPU-ff", 6) == 0) {
    return kNotFound;
  }
  *device = &gpu;
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1410 : 0;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 80ull << 30;  // All, free and used.
  memory[1] = 77ull << 30;
  memory[2] = 3ull << 30;
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void*,
                                        unsigned long long* millijoules) {
  const std::chrono::duration<double> since =
      std::chrono::steady_clock::now().time_since_epoch();
  *millijoules = static_cast<unsigned long long>(since.count() * 250e3);
  return 0;
}

}  // extern "C"
