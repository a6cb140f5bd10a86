#include "benchmarks/harness/nvml.h"

#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_format.h"

namespace lockstep::benchmarks {
namespace {

// Sets `function` to the library's function, or to null.
template <typename Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

// Returns NVML's name of a GPU: "GPU-" and the UUID in five groups.
std::string NameOf(std::span<const char, 16> uuid) {
  std::string name = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    absl::StrAppendFormat(&name, "%02x", static_cast<unsigned char>(uuid[i]));
  }
  return name;
}

}  // namespace

NvmlGpu::NvmlGpu(std::span<const char, 16> uuid) {
  // The library stays loaded: other objects may use it.
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return;
  int (*initialize)() = nullptr;
  int (*handle)(const char*, void**) = nullptr;
  Find(library, "nvmlInit_v2", initialize);
  Find(library, "nvmlDeviceGetHandleByUUID", handle);
  if (initialize == nullptr || handle == nullptr || initialize() != 0) return;
  if (handle(NameOf(uuid).c_str(), &device_) != 0) device_ = nullptr;
  Find(library, "nvmlDeviceGetClockInfo", clock_);
  Find(library, "nvmlDeviceGetMemoryInfo", memory_);
  Find(library, "nvmlDeviceGetTotalEnergyConsumption", energy_);
}

std::optional<int> NvmlGpu::SmClockMhz() const {
  constexpr int kSmClock = 1;  // NVML_CLOCK_SM.
  unsigned mhz = 0;
  if (device_ == nullptr || clock_ == nullptr ||
      clock_(device_, kSmClock, &mhz) != 0) {
    return std::nullopt;
  }
  return static_cast<int>(mhz);
}

std::optional<int64_t> NvmlGpu::UsedMemoryBytes() const {
  Memory memory = {};
  if (device_ == nullptr || memory_ == nullptr ||
      memory_(device_, &memory) != 0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(memory.used);
}

std::optional<double> NvmlGpu::EnergyJoules() const {
  unsigned long long millijoules = 0;
  if (device_ == nullptr || energy_ == nullptr ||
      energy_(device_, &millijoules) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(millijoules) * 1e-3;
}

}  // namespace lockstep::benchmarks
