#include "collectives/nccl/one_gpu_windows.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/nccl_windows.h"
#else
#include <cuda.h>
#include <nccl_device.h>
#endif

namespace lockstep {
namespace {

absl::Status Zero(std::byte* memory, int64_t bytes) {
  return CudaStatus(cudaMemset(memory, 0, static_cast<size_t>(bytes)),
                    "cudaMemset");
}

#ifdef LOCKSTEP_CUDA_STANDIN

// Each rank has an allocation of its own, so that AddressSanitizer sees
// overruns.
class StandinWindows : public OneGpuWindows {
 public:
  absl::Status Make(int world_size, int64_t bytes) {
    std::vector<char*> peers;
    for (int rank = 0; rank < world_size; ++rank) {
      LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory,
                                AllocateDeviceMemory(bytes));
      LOCKSTEP_RETURN_IF_ERROR(Zero(memory.get(), bytes));
      peers.push_back(reinterpret_cast<char*>(memory.get()));
      memory_.push_back(std::move(memory));
    }
    for (int rank = 0; rank < world_size; ++rank) {
      windows_.push_back(std::make_unique<ncclWindow_vidmem>());
      *windows_.back() = {.peers = peers,
                          .bytes = static_cast<size_t>(bytes),
                          .lsa_rank = rank};
    }
    return absl::OkStatus();
  }

  ncclWindow_t window(int rank) const override {
    return windows_[static_cast<size_t>(rank)].get();
  }
  std::byte* memory(int rank) const override {
    return memory_[static_cast<size_t>(rank)].get();
  }

 private:
  std::vector<DeviceMemory> memory_;
  std::vector<std::unique_ptr<ncclWindow_vidmem>> windows_;
};

using Windows = StandinWindows;

#else

constexpr uint64_t kStride = uint64_t{1} << 32;  // Between ranks' memory.

// Finds a function of the driver, which is not linked.
template <typename Function>
absl::Status Find(const char* name, Function*& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      name, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(error, "cudaGetDriverEntryPoint"));
  if (result != cudaDriverEntryPointSuccess) {
    return absl::UnimplementedError(absl::StrCat("the driver has no ", name));
  }
  function = reinterpret_cast<Function*>(found);
  return absl::OkStatus();
}

absl::Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": driver error ", static_cast<int>(result)));
}

// The driver's functions for virtual memory.
struct Driver {
  absl::Status Load() {
    LOCKSTEP_RETURN_IF_ERROR(
        Find("cuMemGetAllocationGranularity", granularity));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemAddressReserve", reserve));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemAddressFree", free));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemCreate", create));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemRelease", release));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemMap", map));
    LOCKSTEP_RETURN_IF_ERROR(Find("cuMemUnmap", unmap));
    return Find("cuMemSetAccess", set_access);
  }

  decltype(cuMemGetAllocationGranularity)* granularity = nullptr;
  decltype(cuMemAddressReserve)* reserve = nullptr;
  decltype(cuMemAddressFree)* free = nullptr;
  decltype(cuMemCreate)* create = nullptr;
  decltype(cuMemRelease)* release = nullptr;
  decltype(cuMemMap)* map = nullptr;
  decltype(cuMemUnmap)* unmap = nullptr;
  decltype(cuMemSetAccess)* set_access = nullptr;
};

class GpuWindows : public OneGpuWindows {
 public:
  ~GpuWindows() override {
    for (int rank = 0; rank < mapped_; ++rank) {
      driver_.unmap(AddressOf(rank), bytes_);
    }
    for (const CUmemGenericAllocationHandle each : allocations_) {
      driver_.release(each);
    }
    if (base_ != 0) driver_.free(base_, kStride * ranks_);
  }

  absl::Status Make(int world_size, int64_t bytes) {
    LOCKSTEP_RETURN_IF_ERROR(driver_.Load());
    LOCKSTEP_RETURN_IF_ERROR(Reserve(world_size, bytes));
    for (int rank = 0; rank < world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(Map(rank));
      LOCKSTEP_RETURN_IF_ERROR(
          Zero(memory(rank), static_cast<int64_t>(bytes_)));
    }
    for (int rank = 0; rank < world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(AddWindow(rank));
    }
    return absl::OkStatus();
  }

  ncclWindow_t window(int rank) const override {
    return reinterpret_cast<ncclWindow_t>(
        windows_[static_cast<size_t>(rank)].get());
  }
  std::byte* memory(int rank) const override {
    return reinterpret_cast<std::byte*>(AddressOf(rank));
  }

 private:
  CUdeviceptr AddressOf(int rank) const {
    return base_ + kStride * static_cast<uint64_t>(rank);
  }

  absl::Status Reserve(int world_size, int64_t bytes) {
    int device = 0;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    size_t unit = 0;
    LOCKSTEP_RETURN_IF_ERROR(
        DriverStatus(driver_.granularity(&unit, &properties_,
                                         CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                     "cuMemGetAllocationGranularity"));
    bytes_ = (static_cast<size_t>(bytes) + unit - 1) / unit * unit;
    ranks_ = static_cast<size_t>(world_size);
    return DriverStatus(
        driver_.reserve(&base_, kStride * ranks_, kStride, 0, 0),
        "cuMemAddressReserve");
  }

  absl::Status Map(int rank) {
    CUmemGenericAllocationHandle allocation = 0;
    LOCKSTEP_RETURN_IF_ERROR(DriverStatus(
        driver_.create(&allocation, bytes_, &properties_, 0), "cuMemCreate"));
    allocations_.push_back(allocation);
    LOCKSTEP_RETURN_IF_ERROR(DriverStatus(
        driver_.map(AddressOf(rank), bytes_, 0, allocation, 0), "cuMemMap"));
    ++mapped_;
    const CUmemAccessDesc access = {properties_.location,
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return DriverStatus(driver_.set_access(AddressOf(rank), bytes_, &access, 1),
                        "cuMemSetAccess");
  }

  // Fills in the fields that ncclGetLsaPointer reads.
  absl::Status AddWindow(int rank) {
    ncclWindow_vidmem window = {};
    window.lsaFlatBase = reinterpret_cast<char*>(base_);
    window.lsaRank = rank;
    window.worldRank = rank;
    window.stride4G = 1;
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory,
                              AllocateDeviceMemory(sizeof(window)));
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(memory.get(), &window, sizeof(window),
                              cudaMemcpyHostToDevice),
                   "cudaMemcpy"));
    windows_.push_back(std::move(memory));
    return absl::OkStatus();
  }

  Driver driver_;
  CUmemAllocationProp properties_ = {};
  size_t bytes_ = 0;
  size_t ranks_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> allocations_;
  int mapped_ = 0;
  std::vector<DeviceMemory> windows_;
};

using Windows = GpuWindows;

#endif

}  // namespace

absl::StatusOr<std::unique_ptr<OneGpuWindows>> OneGpuWindows::Create(
    int world_size, int64_t bytes) {
  auto made = std::make_unique<Windows>();
  LOCKSTEP_RETURN_IF_ERROR(made->Make(world_size, bytes));
  return std::unique_ptr<OneGpuWindows>(std::move(made));
}

}  // namespace lockstep
