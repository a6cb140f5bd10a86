// device FILE: writes the descriptions of each GPU by CUDA and cuDNN, as JSON.
//
// "cudnn" is the description from which cuDNN builds plans on hosts without
// such a card.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::ordered_json;

// Returns attributes that cudaDeviceProp does not have, or no longer has.
ordered_json Attributes(int device) {
  constexpr struct {
    const char* name;
    cudaDeviceAttr attribute;
  } kAttributes[] = {
      {"clock_khz", cudaDevAttrClockRate},
      {"memory_clock_khz", cudaDevAttrMemoryClockRate},
      {"memory_pools", cudaDevAttrMemoryPoolsSupported},
      {"compute_mode", cudaDevAttrComputeMode},
      {"cooperative_launch", cudaDevAttrCooperativeLaunch},
      {"can_flush_remote_writes", cudaDevAttrCanFlushRemoteWrites},
      {"host_native_atomics", cudaDevAttrHostNativeAtomicSupported},
  };
  ordered_json all;
  for (const auto& each : kAttributes) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, each.attribute, device) == cudaSuccess) {
      all[each.name] = value;
    }
  }
  return all;
}

ordered_json Properties(const cudaDeviceProp& device) {
  return {
      {"name", device.name},
      {"compute_capability", {device.major, device.minor}},
      {"total_global_mem", device.totalGlobalMem},
      {"multi_processor_count", device.multiProcessorCount},
      {"l2_cache_size", device.l2CacheSize},
      {"persisting_l2_cache_max_size", device.persistingL2CacheMaxSize},
      {"memory_bus_width", device.memoryBusWidth},
      {"shared_mem_per_block", device.sharedMemPerBlock},
      {"shared_mem_per_block_optin", device.sharedMemPerBlockOptin},
      {"shared_mem_per_multiprocessor", device.sharedMemPerMultiprocessor},
      {"reserved_shared_mem_per_block", device.reservedSharedMemPerBlock},
      {"regs_per_block", device.regsPerBlock},
      {"regs_per_multiprocessor", device.regsPerMultiprocessor},
      {"max_blocks_per_multiprocessor", device.maxBlocksPerMultiProcessor},
      {"max_threads_per_multiprocessor", device.maxThreadsPerMultiProcessor},
      {"max_threads_per_block", device.maxThreadsPerBlock},
      {"async_engine_count", device.asyncEngineCount},
      {"concurrent_kernels", device.concurrentKernels},
      {"ecc_enabled", device.ECCEnabled},
      {"integrated", device.integrated},
      {"is_multi_gpu_board", device.isMultiGpuBoard},
      {"stream_priorities", device.streamPrioritiesSupported},
      {"pci", {device.pciDomainID, device.pciBusID, device.pciDeviceID}}};
}

// Returns the device's description in cuDNN's own format; if cuDNN fails, a
// text that says why.
ordered_json CudnnDescription(int device) {
  cudnnBackendDescriptor_t properties = nullptr;
  int64_t size = 0;
  std::vector<char> text(1 << 20);
  const int32_t id = device;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(
      CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(
        properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &id);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendFinalize(properties);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendGetAttribute(
        properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        static_cast<int64_t>(text.size()), &size, text.data());
  }
  if (properties != nullptr) cudnnBackendDestroyDescriptor(properties);
  if (status != CUDNN_STATUS_SUCCESS) return cudnnGetErrorString(status);
  ordered_json description = ordered_json::parse(
      std::string(text.data(), static_cast<size_t>(size)).c_str(), nullptr,
      /*allow_exceptions=*/false);
  return description.is_discarded() ? "not JSON" : description;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: device FILE\n", stderr);
    return 2;
  }
  int devices = 0;
  int driver = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess) error = cudaDriverGetVersion(&driver);
  ordered_json all = {{"driver_version", driver},
                      {"devices", ordered_json::array()}};
  for (int i = 0; i < devices && error == cudaSuccess; ++i) {
    cudaDeviceProp properties;
    error = cudaGetDeviceProperties(&properties, i);
    if (error != cudaSuccess) break;
    ordered_json one = Properties(properties);
    one["attributes"] = Attributes(i);
    for (int peer = 0; peer < devices; ++peer) {
      int can_access = 0;
      if (peer != i) cudaDeviceCanAccessPeer(&can_access, i, peer);
      one["can_access_peer"].push_back(can_access);
    }
    one["cudnn"] = CudnnDescription(i);
    all["devices"].push_back(one);
  }
  if (error != cudaSuccess) {
    std::fprintf(stderr, "device: %s\n", cudaGetErrorString(error));
    return 1;
  }
  std::ofstream(argv[1]) << all.dump(1) << "\n";
  std::printf("%s\n", all.dump(1).c_str());
  return 0;
}
