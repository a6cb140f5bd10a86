// Readings of a GPU from NVIDIA's management library, which comes with the
// driver.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_NVML_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_NVML_H_

#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::benchmarks {

// One GPU. The library is loaded when the object is made, so that programs run
// without it. If there is no library, or the library does not know the GPU, no
// reading has a value. Readings take microseconds to milliseconds and do not
// wait for the GPU's work. Not thread safe.
class NvmlGpu {
 public:
  // uuid: as CUDA gives it.
  explicit NvmlGpu(std::span<const char, 16> uuid);

  // Returns the clock of the multiprocessors, in MHz.
  std::optional<int> SmClockMhz() const;
  // Returns the memory in use, by this and all other programs.
  std::optional<int64_t> UsedMemoryBytes() const;
  // Returns the energy that the GPU has used since the driver was loaded. GPUs
  // update the number several times a second. GPUs before Volta have none.
  std::optional<double> EnergyJoules() const;

 private:
  struct Memory {
    unsigned long long total, free, used;  // NVML's nvmlMemory_t.
  };

  void* device_ = nullptr;  // Null: no reading has a value.
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_NVML_H_
