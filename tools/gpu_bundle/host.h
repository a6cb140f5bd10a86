// What this host has for the stages: GPUs, NVIDIA's libraries, a Python with
// PyTorch, and programs.
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

// The GPUs that CUDA_VISIBLE_DEVICES leaves, one at least: asks the driver
// (libcuda.so.1), which is loaded but not linked. Errors: kNotFound, saying
// why, where there is no driver or no GPU; kUnavailable where the driver fails.
absl::StatusOr<std::vector<Gpu>> FindGpus();

// Of each library the functions that the programs call.
using CudaFunctions = std::map<std::string, std::vector<std::string>>;

struct CudaLibraries {
  struct Found {
    std::string name;     // "libnccl.so.2"
    std::string folder;   // Where it was found.
    std::string file;     // Links resolved.
    std::string version;  // As it says itself, "2.28.9"; "" if it does not.
  };
  std::vector<Found> found;
  std::vector<std::string> passed_over;  // "FILE, 2.27.7: has no ncclX".
  std::vector<std::string> missing;
  std::vector<std::string> looked;  // In the order in which it was looked.
};

// For each library the first folder that has it with all its functions: of
// $LOCKSTEP_CUDA_LIBS, of the host's LD_LIBRARY_PATH, of the wheels of each
// python3 on PATH, and of the toolkits in $CUDA_HOME, /usr/local/cuda* and the
// system. What they open by themselves (cuBLAS, NVRTC) is looked for too, and
// may be absent. Cost: starts each python3 once, and loads each library that it
// asks for functions.
CudaLibraries FindCudaLibraries(const CudaFunctions& functions);

// Links to what was found and to its parts, which lie beside it and begin with
// its name: a folder for LD_LIBRARY_PATH that has nothing else, no other driver
// say. Errors: the file system's.
absl::Status LinkLibraries(const CudaLibraries& libraries,
                           const std::string& folder);

// The environment's variable; "" if it is not set.
std::string Variable(const char* name);

// The program on PATH, or "" if it is not there.
std::string FindProgram(absl::string_view name);

// compute-sanitizer on PATH or in a toolkit; "" if it is not there.
std::string FindComputeSanitizer();

struct Torch {
  std::string
      python;  // "" if no python3 on PATH has a PyTorch that sees a GPU.
  std::string version;  // Or why there is none.
};

// Cost: imports PyTorch once for each python3 on PATH until one has it.
Torch FindTorch();

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_HOST_H_
