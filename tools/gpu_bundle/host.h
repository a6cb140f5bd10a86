// The resources of this host for the stages: GPUs, NVIDIA's libraries, a Python
// with PyTorch, and programs.
#ifndef LOCKSTEP_TOOLS_GPU_BUNDLE_HOST_H_
#define LOCKSTEP_TOOLS_GPU_BUNDLE_HOST_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::gpu_bundle {

struct Gpu {
  std::string name;
  bool exclusive;  // To one process, so that no two ranks share it.
};

// Returns the GPUs that CUDA_VISIBLE_DEVICES leaves visible, at least one. Asks
// the driver (libcuda.so.1), which is loaded but not linked. Errors: kNotFound,
// saying why, if there is no driver or no GPU; kUnavailable if the driver
// fails.
absl::StatusOr<std::vector<Gpu>> FindGpus();

// The functions that the programs call, by library.
using CudaFunctions = std::map<std::string, std::vector<std::string>>;

// Returns kFailedPrecondition, naming both versions, if the driver is for an
// older CUDA than the runtime of `functions`. A runtime needs a driver for any
// release of its major version.
absl::Status CheckDriver(const CudaFunctions& functions);

struct CudaLibraries {
  struct Found {
    std::string name;     // "libnccl.so.2"
    std::string folder;   // The folder that has it.
    std::string file;     // The file, with links resolved.
    std::string version;  // "2.28.9"; "" if the library does not say it.
    std::string lack;     // What is not tested with it; "" if it has all.
  };
  std::vector<Found> found;
  std::vector<std::string> passed_over;  // "FILE, 2.27.7: has no ncclX".
  std::vector<std::string> missing;
  std::vector<std::string> looked;  // The searched folders, in order.
};

// Finds each library in the first folder that has it with all its functions.
// Takes an NCCL before 2.28 only if there is no later one. Searches
// $LOCKSTEP_CUDA_LIBS, the host's LD_LIBRARY_PATH, the wheels of each python3
// on PATH, and the toolkits in $CUDA_HOME, /usr/local/cuda* and the system.
// Also searches for the libraries that cuDNN opens by itself (cuBLAS, NVRTC),
// which may be absent. Cost: starts each python3 once, and loads each library
// whose functions it checks.
CudaLibraries FindCudaLibraries(const CudaFunctions& functions);

// Links to the libraries that were found and to their parts, which lie in the
// same folder and whose names begin with the library's name. `folder` is then
// an entry for LD_LIBRARY_PATH that has nothing else, such as another driver.
// Errors: kUnavailable if the file system fails.
absl::Status LinkLibraries(const CudaLibraries& libraries,
                           const std::string& folder);

// Returns the host's libstdc++.so.6 if it is newer than that in `folder`, by
// the symbol versions that it has; "" if it is not, or if either has none.
std::string FindNewerCxxLibrary(const std::string& folder);

// Links to that library and to the libgcc_s.so.1 beside it. Errors: as for
// LinkLibraries.
absl::Status LinkCxxLibrary(const std::string& file, const std::string& folder);

// Returns the environment variable; "" if it is not set.
std::string Variable(const char* name);

// Returns the path of the program on PATH; "" if PATH does not have it.
std::string FindProgram(absl::string_view name);

// Returns the path of compute-sanitizer on PATH or in a toolkit; "" if neither
// has it.
std::string FindComputeSanitizer();

struct Torch {
  std::string
      python;  // "" if no python3 on PATH has a PyTorch that sees a GPU.
  std::string version;  // Or why there is none.
};

// Finds the first python3 on PATH whose PyTorch sees a GPU. Cost: imports
// PyTorch once in each python3 up to that one.
Torch FindTorch();

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_HOST_H_
