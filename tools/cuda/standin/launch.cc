// Launches, and the calls of device code that its block answers.
#include "tools/cuda/standin/launch.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "tools/cuda/standin/block.h"
#include "tools/cuda/standin/errors.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {
namespace {

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
