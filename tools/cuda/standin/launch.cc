#include "tools/cuda/standin/launch.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "tools/cuda/standin/block.h"
#include "tools/cuda/standin/include/cuda_runtime.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {
namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;

std::mutex fault_mutex;  // Guards what follows.
bool fault_pending = false;

std::string& Fault() {
  static std::string& fault = *new std::string;
  return fault;
}

struct Description {
  const char* name;
  const char* text;
};

Description Describe(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidConfiguration:
      return {"cudaErrorInvalidConfiguration",
              "invalid configuration argument"};
    case cudaErrorInsufficientDriver:
      return {"cudaErrorInsufficientDriver",
              "driver too old for the CUDA runtime"};
    case cudaErrorNoDevice:
      return {"cudaErrorNoDevice", "no CUDA-capable device"};
    case cudaErrorInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorInvalidResourceHandle:
      return {"cudaErrorInvalidResourceHandle", "invalid resource handle"};
    case cudaErrorNotReady:
      return {"cudaErrorNotReady", "device not ready"};
    case cudaErrorLaunchOutOfResources:
      return {"cudaErrorLaunchOutOfResources",
              "too many resources requested for launch"};
    case cudaErrorLaunchFailure:
      return {"cudaErrorLaunchFailure", "unspecified launch failure"};
    case cudaErrorNotSupported:
      return {"cudaErrorNotSupported", "operation not supported"};
  }
  return {"unrecognized error code", "unrecognized error code"};
}

cudaError_t Check(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (config.numAttrs != 0) return cudaErrorNotSupported;
  if (!IsStream(config.stream)) return cudaErrorInvalidResourceHandle;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYz || grid.z > kMaxGridYz) {
    return cudaErrorInvalidConfiguration;
  }
  // Each dimension too, since the product may have wrapped around.
  if (threads > kMaxThreadsPerBlock || block.x > kMaxThreadsPerBlock ||
      block.y > kMaxThreadsPerBlock || block.z > kMaxBlockZ) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > kMaxSharedBytes) return cudaErrorInvalidValue;
  return cudaSuccess;
}

void RunBlocks(const cudaLaunchConfig_t& config,
               const std::function<void()>& thread) {
  Block block(config, thread);
  for (unsigned z = 0; z < config.gridDim.z; ++z) {
    for (unsigned y = 0; y < config.gridDim.y; ++y) {
      for (unsigned x = 0; x < config.gridDim.x; ++x) {
        if (block.Run({x, y, z})) continue;
        std::fprintf(stderr, "stand-in kernel fault: %s\n",
                     block.fault().c_str());
        SetFault(block.fault());
        return;
      }
    }
  }
}

}  // namespace

cudaError_t Record(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void SetFault(std::string what) {
  const std::lock_guard lock(fault_mutex);
  Fault() = std::move(what);
  fault_pending = true;
}

cudaError_t TakeFault() {
  const std::lock_guard lock(fault_mutex);
  return std::exchange(fault_pending, false) ? cudaErrorLaunchFailure
                                             : cudaSuccess;
}

std::string LastFault() {
  const std::lock_guard lock(fault_mutex);
  return Fault();
}

cudaError_t Launch(const cudaLaunchConfig_t& config,
                   std::function<void()> thread) {
  const cudaError_t error = Record(Check(config));
  if (error != cudaSuccess) return error;
  Enqueue(config.stream, [config, thread = std::move(thread)] {
    RunBlocks(config, thread);
    return true;
  });
  return cudaSuccess;
}

int Lane() { return Block::Current().lane(); }

void* DynamicShared() { return Block::Current().shared(); }

void SyncThreads(Site site) { Block::Current().WaitForBlock(site); }

uint32_t Ballot(uint32_t mask, bool predicate, Site site) {
  Block& block = Block::Current();
  block.WaitForLanes(mask, predicate, 0, 0, site);
  return block.votes();
}

uint64_t Exchange(uint32_t mask, uint64_t value, int source, Site site) {
  return Block::Current().WaitForLanes(mask, false, value, source, site);
}

}  // namespace lockstep::standin

cudaError_t cudaGetLastError() {
  return std::exchange(lockstep::standin::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() { return lockstep::standin::last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  return lockstep::standin::Describe(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return lockstep::standin::Describe(error).text;
}
