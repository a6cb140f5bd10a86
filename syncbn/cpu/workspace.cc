#include "syncbn/cpu/workspace.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

// The OpenMP runtime that oneDNN links, called as a compiler would call it. The
// functions are declared here because <omp.h> is absent if the compiler's own
// OpenMP is not installed. GCC's and LLVM's runtimes both have these functions.
extern "C" {
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads,
                   unsigned flags);
}

namespace lockstep {
namespace {

// The runtime synchronises its threads, but the thread sanitizer cannot see
// this, since the distribution's runtime is built without it. The two atomics
// state the same order in a way that it sees.
struct Loop {
  absl::FunctionRef<void(int64_t, int64_t, int)> body;
  int64_t items;
  std::atomic<bool> started = false;
  std::atomic<int> finished = 0;
};

void RunPart(void* data) {
  Loop& loop = *static_cast<Loop*>(data);
  (void)loop.started.load(std::memory_order_acquire);
  // The runtime may give fewer threads than requested.
  const int64_t threads = omp_get_num_threads();
  const int64_t thread = omp_get_thread_num();
  const int64_t begin = loop.items * thread / threads;
  const int64_t end = loop.items * (thread + 1) / threads;
  if (begin < end) loop.body(begin, end, static_cast<int>(thread));
  loop.finished.fetch_add(1, std::memory_order_release);
}

constexpr std::align_val_t kAlignment{64};

}  // namespace

int MaxParallelThreads() { return omp_get_max_threads(); }

void ParallelFor(int64_t items, int64_t work,
                 absl::FunctionRef<void(int64_t, int64_t, int)> body) {
  if (items <= 0) return;
  const int64_t threads =
      std::min<int64_t>({items, work / kWorkOfThread, omp_get_max_threads()});
  if (threads <= 1 || omp_in_parallel()) {
    body(0, items, 0);
    return;
  }
  Loop loop = {.body = body, .items = items};
  loop.started.store(true, std::memory_order_release);
  GOMP_parallel(RunPart, &loop, static_cast<unsigned>(threads), 0);
  (void)loop.finished.load(std::memory_order_acquire);
}

absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes) {
  void* const memory =
      ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                     kAlignment, std::nothrow);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("batch norm: no host memory for ", bytes, " bytes"));
  }
  return std::shared_ptr<std::byte>(
      static_cast<std::byte*>(memory),
      [](std::byte* p) { ::operator delete(p, kAlignment); });
}

absl::StatusOr<std::byte*> Scratch::Reserve(int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_ = nullptr;
    bytes_ = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateHost(bytes));
    bytes_ = bytes;
  }
  return memory_.get();
}

}  // namespace lockstep
