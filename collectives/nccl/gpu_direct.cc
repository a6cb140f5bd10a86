#include "collectives/nccl/gpu_direct.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/counter_random.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/mutex.h"
#include "base/run_within.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peer_reduce.h"

#ifdef LOCKSTEP_NCCL_WINDOWS
// Weak functions are null if the NCCL that is loaded lacks them. Otherwise no
// program would start with an NCCL before 2.28.
__attribute__((weak)) ncclTeam_t ncclTeamLsa(ncclComm_t);
__attribute__((weak)) ncclResult_t ncclCommWindowRegister(ncclComm_t, void*,
                                                          size_t, ncclWindow_t*,
                                                          int);
__attribute__((weak))
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
#endif

namespace lockstep {

#ifdef LOCKSTEP_NCCL_WINDOWS

namespace {

// Returns whether the NCCL that is loaded has windows as peer_reduce.cu was
// compiled for: 2.28 and later.
bool HasWindows() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess &&
         version >= NCCL_VERSION(2, 28, 0);
}

// Rounds up to whole pages, the unit of windows.
int64_t WholePages(int64_t bytes) {
  const int64_t page = NCCL_WIN_REQUIRED_ALIGNMENT;
  return (bytes + page - 1) / page * page;
}

struct Window {
  std::byte* memory = nullptr;
  int64_t bytes = 0;
  ncclWindow_t window = nullptr;
};

// All windows, by number; the numbers match on all ranks. Memory that users
// keep may hold this object after the communicator is gone.
class Windows {
 public:
  explicit Windows(std::shared_ptr<NcclHandle> handle)
      : handle_(std::move(handle)) {}

  int64_t Add(const Window& window) {
    const MutexLock lock(mutex_);
    windows_[++last_] = window;
    return last_;
  }

  void Remove(int64_t number) {
    const MutexLock lock(mutex_);
    Deregister(windows_.extract(number).mapped());
  }

  void Close() {
    const MutexLock lock(mutex_);
    for (auto& [number, window] : windows_) {
      Deregister(std::exchange(window, {.memory = window.memory}));
    }
    handle_ = nullptr;
  }

  // Returns the window that holds all of the buffer, and its number.
  std::optional<std::pair<int64_t, Window>> Find(const ConstBuffer& buffer) {
    const MutexLock lock(mutex_);
    const auto* const begin = static_cast<const std::byte*>(buffer.data);
    for (const auto& [number, window] : windows_) {
      if (window.window != nullptr && begin >= window.memory &&
          begin + buffer.size_bytes() <= window.memory + window.bytes) {
        return std::pair(number, window);
      }
    }
    return std::nullopt;
  }

 private:
  void Deregister(const Window& window) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (handle_ == nullptr || window.window == nullptr) return;
    static_cast<void>(handle_->Call([&](ncclComm_t comm) {
      return ncclCommWindowDeregister(comm, window.window);
    }));
  }

  Mutex mutex_;
  // Null after Close.
  std::shared_ptr<NcclHandle> handle_ ABSL_GUARDED_BY(mutex_);
  int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Window> windows_ ABSL_GUARDED_BY(mutex_);
};

// Returns whether kernels may use the window. Where NCCL has no symmetric
// memory, for example between cards that do not reach each other, it returns a
// handle in host memory.
bool IsOnDevice(ncclWindow_t window) {
  cudaPointerAttributes attributes = {};
  return cudaPointerGetAttributes(&attributes, window) == cudaSuccess &&
         attributes.type == cudaMemoryTypeDevice;
}

class WindowDirect : public GpuDirect {
 public:
  WindowDirect(int rank, int world_size, std::shared_ptr<NcclHandle> handle,
               cudaStream_t stream)
      : handle_(handle),
        stream_(stream),
        windows_(std::make_shared<Windows>(std::move(handle))) {
    group_.rank = rank;
    group_.world_size = world_size;
  }

  // Creates everything that kernels need. Returns false if ranks cannot access
  // each other's memory.
  absl::StatusOr<bool> Meet() {
    const int64_t bytes = MeetingBytes(group_.world_size);
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory,
                              Allocate(bytes));
    LOCKSTEP_ASSIGN_OR_RETURN(meeting_, Register(std::move(memory), bytes));
    const auto window =
        windows_->Find({meeting_.get(), bytes, DataType::kUInt8});
    if (!window.has_value()) return false;
    group_.meeting = window->second.window;
    LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(meeting_.get(), 0,
                                   static_cast<size_t>(bytes), stream.get()),
                   "cudaMemsetAsync"));
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()),
                                        "cudaStreamSynchronize"));
    void* aborted = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMallocHost(&aborted, sizeof(int)), "cudaMallocHost"));
    aborted_.reset(static_cast<int*>(aborted));
    *aborted_ = 0;
    group_.aborted = aborted_.get();
    LOCKSTEP_RETURN_IF_ERROR(LoadWindowKernels());
    return true;
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    void* memory = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(NcclStatus(
        ncclMemAlloc(&memory, static_cast<size_t>(WholePages(bytes))),
        "ncclMemAlloc"));
    return std::shared_ptr<std::byte>(
        static_cast<std::byte*>(memory),
        [](std::byte* made) { static_cast<void>(ncclMemFree(made)); });
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Register(
      std::shared_ptr<std::byte> memory, int64_t bytes) override {
    Window made = {.memory = memory.get(), .bytes = WholePages(bytes)};
    LOCKSTEP_RETURN_IF_ERROR(handle_->Call([&](ncclComm_t comm) {
      return ncclCommWindowRegister(comm, made.memory,
                                    static_cast<size_t>(made.bytes),
                                    &made.window, NCCL_WIN_DEFAULT);
    }));
    if (made.window != nullptr && !IsOnDevice(made.window)) {
      LOCKSTEP_RETURN_IF_ERROR(handle_->Call([&](ncclComm_t comm) {
        return ncclCommWindowDeregister(comm, made.window);
      }));
      made.window = nullptr;
    }
    const int64_t number = windows_->Add(made);
    // Frees the memory after removing its window.
    return std::shared_ptr<std::byte>(
        made.memory, [memory = std::move(memory), windows = windows_,
                      number](std::byte*) { windows->Remove(number); });
  }

  uint64_t PlaceOf(const Collective& call) const override {
    if (call.operation != Operation::kAllReduce &&
        call.operation != Operation::kReduceScatter) {
      return 0;
    }
    if (call.input.count == 0) return 0;
    uint64_t place = Mixed(0, call.input);
    if (call.operation == Operation::kAllReduce && place != 0) {
      place = Mixed(place, call.output);
    }
    return place;
  }

  absl::Status Reduce(const Collective& call) override {
    return ReduceFromWindows(call, group_, PlaceIn(call.input),
                             call.operation == Operation::kAllReduce
                                 ? PlaceIn(call.output)
                                 : WindowPlace(),
                             stream_);
  }

  void Abort() override {
    if (aborted_ != nullptr) {
      __atomic_store_n(aborted_.get(), 1, __ATOMIC_RELAXED);
    }
  }

  void Close() override { windows_->Close(); }

 private:
  struct FreePinned {
    void operator()(int* memory) const { cudaFreeHost(memory); }
  };

  // Returns the place of a buffer that lies in a window.
  WindowPlace PlaceIn(const ConstBuffer& buffer) const {
    const Window in = windows_->Find(buffer)->second;
    return {in.window, static_cast<const std::byte*>(buffer.data) - in.memory};
  }

  // Returns `seed` mixed with the buffer's window and its offset in that
  // window; 0 if the buffer is in no window.
  uint64_t Mixed(uint64_t seed, const ConstBuffer& buffer) const {
    const auto found = windows_->Find(buffer);
    if (!found.has_value()) return 0;
    const int64_t offset =
        static_cast<const std::byte*>(buffer.data) - found->second.memory;
    uint64_t mixed = seed;
    for (const int64_t part : {found->first, offset}) {
      mixed = MixBits(mixed + static_cast<uint64_t>(part) + 0x9e3779b97f4a7c15);
    }
    return mixed | 1;
  }

  const std::shared_ptr<NcclHandle> handle_;
  const cudaStream_t stream_;
  const std::shared_ptr<Windows> windows_;
  std::shared_ptr<std::byte> meeting_;
  std::unique_ptr<int, FreePinned> aborted_;
  WindowGroup group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GpuDirect>> GpuDirect::Create(
    int rank, int world_size, std::shared_ptr<NcclHandle> handle,
    cudaStream_t stream, absl::Duration timeout) {
  if (world_size > kMaxWindowRanks || !HasWindows() ||
      ncclTeamLsa(handle->comm()).nRanks != world_size) {
    return nullptr;
  }
  int device = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  // Both are shared, since an abandoned thread may still use them.
  const auto made = std::make_shared<std::unique_ptr<WindowDirect>>(
      std::make_unique<WindowDirect>(rank, world_size, std::move(handle),
                                     stream));
  const auto can_meet = std::make_shared<bool>(false);
  LOCKSTEP_RETURN_IF_ERROR(RunWithin(timeout, [=]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
    LOCKSTEP_ASSIGN_OR_RETURN(*can_meet, (*made)->Meet());
    return absl::OkStatus();
  }));
  if (!*can_meet) {
    (*made)->Close();
    return nullptr;
  }
  return std::move(*made);
}

#else

absl::StatusOr<std::unique_ptr<GpuDirect>> GpuDirect::Create(
    int, int, std::shared_ptr<NcclHandle>, cudaStream_t, absl::Duration) {
  return nullptr;
}

#endif

}  // namespace lockstep
