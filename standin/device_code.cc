// Launches kernels. A launch runs one block at a time; the block's threads take
// turns on one host thread.
#include "standin/include/device_code.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_format.h"
#include "standin/control.h"
#include "standin/device.h"
#include "standin/queue.h"
#include "standin/runtime.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

constinit thread_local uint3 threadIdx = {};
constinit thread_local uint3 blockIdx = {};
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace lockstep::standin {
namespace {

// The stack of a fiber: enough for a kernel's locals with the sanitizers' red
// zones. Memory that is never touched costs nothing.
constexpr size_t kStackBytes = 256 << 10;
// At least a page on every Linux machine, so that an overrun faults.
constexpr size_t kGuardBytes = 64 << 10;

// Runs `body` on its own stack, in turns with the thread that resumes it. Tells
// AddressSanitizer and ThreadSanitizer of every switch. One thread owns a
// fiber. Destroying a fiber whose body has not returned abandons it: nothing on
// its stack is destroyed.
class Fiber {
 public:
  // Returns null if there is no memory for the stack.
  static std::unique_ptr<Fiber> Create(std::function<void(Fiber&)> body);
  ~Fiber();

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Continues the body until it suspends or returns. Must not be called after
  // the body has returned.
  void Resume();

  // Returns to the caller of Resume. Only the body may call it.
  void Suspend();

 private:
  Fiber(std::function<void(Fiber&)> body, std::byte* memory);

  static void Enter(unsigned high, unsigned low);
  void SwitchToOwner(void** fake_stack);

  const std::function<void(Fiber&)> body_;
  std::byte* const memory_;  // A guard page, and the stack above it.
  ucontext_t context_;
  ucontext_t owner_;

  // For the sanitizers; unused without them.
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] const void* owner_stack_ = nullptr;
  [[maybe_unused]] size_t owner_stack_size_ = 0;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] void* tsan_owner_ = nullptr;
};

// A pool of fibers. Making a fiber is slow, above all with ThreadSanitizer. One
// thread owns a pool.
class FiberPool {
 public:
  // Each fiber calls `work` when it is resumed, and suspends after it.
  explicit FiberPool(std::function<void(Fiber&)> work)
      : work_(std::move(work)) {}
  ~FiberPool() {
    closing_ = true;
    // Lets each body return, so that AddressSanitizer frees its data about it.
    for (const std::unique_ptr<Fiber>& fiber : fibers_) fiber->Resume();
  }

  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // Returns null if there is no memory for another fiber.
  std::unique_ptr<Fiber> Take() {
    if (fibers_.empty()) {
      return Fiber::Create([this](Fiber& self) {
        while (!closing_) {
          work_(self);
          self.Suspend();
        }
      });
    }
    std::unique_ptr<Fiber> fiber = std::move(fibers_.back());
    fibers_.pop_back();
    return fiber;
  }

  // Takes back a fiber that is not in the middle of `work`.
  void Give(std::unique_ptr<Fiber> fiber) {
    fibers_.push_back(std::move(fiber));
  }

 private:
  const std::function<void(Fiber&)> work_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  bool closing_ = false;
};

std::unique_ptr<Fiber> Fiber::Create(std::function<void(Fiber&)> body) {
  void* const memory =
      mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  mprotect(memory, kGuardBytes, PROT_NONE);
  return std::unique_ptr<Fiber>(
      new Fiber(std::move(body), static_cast<std::byte*>(memory)));
}

Fiber::Fiber(std::function<void(Fiber&)> body, std::byte* memory)
    : body_(std::move(body)), memory_(memory) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_ + kGuardBytes;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const uint64_t self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints, so the pointer goes in two halves.
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

Fiber::~Fiber() {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  // An abandoned stack leaves its red zones behind, and the memory may later be
  // mapped for another purpose.
  __asan_unpoison_memory_region(memory_ + kGuardBytes, kStackBytes);
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
  __tsan_destroy_fiber(tsan_fiber_);
#endif
  munmap(memory_, kGuardBytes + kStackBytes);
}

void Fiber::Enter(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(
      static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low));
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, &self->owner_stack_,
                                  &self->owner_stack_size_);
#endif
  self->body_(*self);
  // A null argument tells AddressSanitizer that this stack is no longer used.
  self->SwitchToOwner(nullptr);
}

void Fiber::Resume() {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, memory_ + kGuardBytes,
                                 kStackBytes);
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
  tsan_owner_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, 0);
#endif
  swapcontext(&owner_, &context_);
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
  SwitchToOwner(&fake_stack_);
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake_stack_, &owner_stack_,
                                  &owner_stack_size_);
#endif
}

void Fiber::SwitchToOwner([[maybe_unused]] void** fake_stack) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(fake_stack, owner_stack_, owner_stack_size_);
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
  __tsan_switch_to_fiber(tsan_owner_, 0);
#endif
  swapcontext(&context_, &owner_);
}

class Block;
thread_local Block* current_block = nullptr;

bool IsSameSite(const Site& a, const Site& b) {
  return a.line == b.line && std::strcmp(a.file, b.file) == 0;
}

std::string Coordinates(const uint3& v) {
  return absl::StrFormat("(%d,%d,%d)", v.x, v.y, v.z);
}

// The progress of a launch that waits for memory.
struct LaunchState {
  // Returns whether every thread that waits may continue.
  bool IsReady() const {
    return std::ranges::all_of(conditions,
                               [](const auto& each) { return each.second(); });
  }

  int device = 0;
  std::optional<bool> dropped = {};  // Whether it does not wait; once it does.
  std::map<size_t, std::function<bool()>> conditions = {};  // By thread.
  bool abandoned = false;
};

// Runs the blocks of one launch. A thread runs until it waits or exits, then
// the next thread continues. A fiber that has run a thread to its end takes the
// next thread, so a kernel that never waits needs one fiber. When every thread
// waits at the same barrier, all are released. If some have exited or wait
// elsewhere, the block ends in a fault. One host thread owns a Block.
class Block {
 public:
  // `thread` is the kernel with its arguments. `thread` and `state` must
  // outlive the block.
  Block(const cudaLaunchConfig_t& config, const std::function<void()>& thread,
        LaunchState& state)
      : config_(config), kernel_(thread), state_(state) {
    const dim3& size = config.blockDim;
    for (unsigned z = 0; z < size.z; ++z) {
      for (unsigned y = 0; y < size.y; ++y) {
        for (unsigned x = 0; x < size.x; ++x) {
          Thread thread = {};
          thread.index = {x, y, z};
          threads_.push_back(thread);
        }
      }
    }
  }

  ~Block() {
    // Abandons fibers that wait in the middle of a kernel.
    const std::set<Fiber*> idle(idle_.begin(), idle_.end());
    for (std::unique_ptr<Fiber>& fiber : fibers_) {
      if (idle.count(fiber.get()) > 0) Pool().Give(std::move(fiber));
    }
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs the block `index`. Returns false if it ended in a fault or was
  // abandoned; no other block can run after that. In every second block the
  // threads start in descending order, so that code which relies on the order
  // fails in one of the blocks.
  bool Run(uint3 index) {
    Reset(index);
    current_block = this;
    while (fault_.empty() && !state_.abandoned && exited_ < threads_.size()) {
      if (!ready_.empty()) {
        MakeCurrent(*ready_.front());
        ready_.pop_front();
        current_->fiber->Resume();
      } else if (started_ < threads_.size()) {
        if (!StartFiber())
          fault_ = "no memory for the stacks of device threads";
      } else if (!ReleaseBarrier()) {
        fault_ = DescribeDivergence();
      }
    }
    current_block = nullptr;
    return fault_.empty() && !state_.abandoned;
  }

  // Returns the fault, if Run returned false, or "" if the block was abandoned.
  const std::string& fault() const { return fault_; }

  // Returns the block whose device thread this host thread runs.
  static Block& Current() { return *current_block; }

  // Called for the running device thread. device_code.h documents them.
  void WaitForBlock(Site site) {
    current_->state = State::kAtBarrier;
    current_->site = site;
    current_->fiber->Suspend();
  }
  void WaitForMemory(std::function<bool()> is_ready, Site site) {
    const dim3& grid = config_.gridDim;
    if (current_->has_waited || grid.x * grid.y * grid.z > 1) {
      EndInFault(absl::StrFormat(
          "%s at %s:%d, which is not modelled",
          current_->has_waited ? "a kernel waits a second time for memory"
                               : "a kernel of several blocks waits for memory",
          site.file, site.line));
    }
    current_->has_waited = true;
    if (!state_.dropped.has_value()) {
      state_.dropped = Device::Get().ShouldDropMemoryWait(state_.device);
      Device::Get().NoteProgress();  // The kernel's writes may be awaited.
    }
    if (!*state_.dropped) {
      state_.conditions.try_emplace(
          static_cast<size_t>(current_ - threads_.data()), std::move(is_ready));
    }
    is_ready = nullptr;  // An abandoned fiber's locals are never destroyed.
    if (!state_.IsReady()) {
      state_.abandoned = true;
      current_->fiber->Suspend();
    }
    WaitForBlock(site);
  }
  [[noreturn]] void EndInFault(std::string what) {
    fault_ = std::move(what);
    current_->fiber->Suspend();
    std::abort();
  }

 private:
  enum class State { kReady, kAtBarrier, kExited };

  struct Thread {
    uint3 index;
    Fiber* fiber;
    State state;
    Site site;
    bool has_waited;
  };

  static FiberPool& Pool() {
    thread_local FiberPool pool(
        [](Fiber& fiber) { current_block->RunThreads(fiber); });
    return pool;
  }

  void Reset(uint3 index) {
    index_ = index;
    blockIdx = index;
    blockDim = config_.blockDim;
    gridDim = config_.gridDim;
    const dim3& grid = config_.gridDim;
    const uint64_t linear =
        index.x + uint64_t{grid.x} * (index.y + uint64_t{grid.y} * index.z);
    descending_ = linear % 2 == 1;
    started_ = 0;
    exited_ = 0;
  }

  bool StartFiber() {
    if (idle_.empty()) {
      std::unique_ptr<Fiber> fiber = Pool().Take();
      if (fiber == nullptr) return false;
      idle_.push_back(fiber.get());
      fibers_.push_back(std::move(fiber));
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    fiber->Resume();
    return true;
  }

  void RunThreads(Fiber& self) {
    while (started_ < threads_.size()) {
      const size_t next = started_++;
      Thread& thread =
          threads_[descending_ ? threads_.size() - 1 - next : next];
      thread.fiber = &self;
      thread.state = State::kReady;
      thread.has_waited = false;
      MakeCurrent(thread);
      kernel_();
      thread.state = State::kExited;
      ++exited_;
    }
    idle_.push_back(&self);
  }

  void MakeCurrent(Thread& thread) {
    current_ = &thread;
    threadIdx = thread.index;
  }

  // Releases all threads, in the order in which they started, if all wait in
  // one place.
  bool ReleaseBarrier() {
    for (const Thread& thread : threads_) {
      if (thread.state != State::kAtBarrier ||
          !IsSameSite(thread.site, threads_.front().site)) {
        return false;
      }
    }
    for (Thread& thread : threads_) {
      thread.state = State::kReady;
      ready_.push_back(&thread);
    }
    if (descending_) std::reverse(ready_.begin(), ready_.end());
    return true;
  }

  std::string Describe(const Thread& thread) const {
    const std::string name = "thread " + Coordinates(thread.index);
    if (thread.state == State::kExited) return name + " has exited";
    return absl::StrFormat("%s waits at %s:%d", name, thread.site.file,
                           thread.site.line);
  }

  std::string DescribeDivergence() const {
    const auto waits = [](const Thread& t) {
      return t.state != State::kExited;
    };
    const Thread& waiter =
        *std::find_if(threads_.begin(), threads_.end(), waits);
    const auto elsewhere = [&](const Thread& t) {
      return t.state != waiter.state || !IsSameSite(t.site, waiter.site);
    };
    const auto other =
        std::find_if(threads_.begin(), threads_.end(), elsewhere);
    return absl::StrFormat(
        "block %s: divergence: %s, %s", Coordinates(index_), Describe(waiter),
        other == threads_.end() ? "and nobody comes" : Describe(*other));
  }

  const cudaLaunchConfig_t config_;
  const std::function<void()>& kernel_;
  LaunchState& state_;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  // The state of the running block.
  uint3 index_ = {};
  std::vector<Thread> threads_;  // In order of the linear index.
  size_t started_ = 0;
  size_t exited_ = 0;
  bool descending_ = false;
  std::deque<Thread*> ready_;
  Thread* current_ = nullptr;
  std::string fault_;
};

void ReportFault(std::string_view what) {
  std::fprintf(stderr, "stand-in kernel fault: %s\n",
               std::string(what).c_str());
  SetFault(std::string(what));
}

// Returns the numbers below `count` in an order that depends only on `count`.
std::vector<uint64_t> Shuffled(uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937());
  return numbers;
}

// Runs all blocks of a launch on this host thread, one after the other. Returns
// false if the launch waits for memory.
bool RunBlocks(const cudaLaunchConfig_t& config,
               const std::function<void()>& thread, LaunchState& state) {
  if (!state.IsReady()) return false;
  state.abandoned = false;
  Block block(config, thread, state);
  const dim3& grid = config.gridDim;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const BlockOrder order = Device::Get().schedule().block_order;
  std::vector<uint64_t> shuffled;
  if (order == BlockOrder::kShuffled) shuffled = Shuffled(blocks);
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t index = order == BlockOrder::kAscending    ? i
                           : order == BlockOrder::kDescending ? blocks - 1 - i
                                                              : shuffled[i];
    const uint64_t row = index / grid.x;
    if (block.Run({static_cast<unsigned>(index % grid.x),
                   static_cast<unsigned>(row % grid.y),
                   static_cast<unsigned>(row / grid.y)})) {
      continue;
    }
    if (state.abandoned) return false;
    ReportFault(block.fault());
    return true;
  }
  return true;
}

cudaError_t Check(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (config.numAttrs != 0 || config.dynamicSmemBytes != 0) {
    return cudaErrorNotSupported;
  }
  if (!IsStream(config.stream)) return cudaErrorInvalidResourceHandle;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid.x > kMaxGridX || grid.y > kMaxGridYz || grid.z > kMaxGridYz) {
    return cudaErrorInvalidConfiguration;
  }
  // Each dimension is checked too, because the product may have wrapped around.
  if (threads > kMaxThreadsPerBlock || block.x > kMaxThreadsPerBlock ||
      block.y > kMaxThreadsPerBlock || block.z > kMaxBlockZ) {
    return cudaErrorInvalidConfiguration;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t Launch(const cudaLaunchConfig_t& config,
                   std::function<void()> thread) {
  const cudaError_t error = Record(Check(config));
  if (error != cudaSuccess) return error;
  Count(&CallCounts::launches);
  return Put(config.stream, [config, thread = std::move(thread),
                             device = CurrentDevice()] {
    return [config, thread, state = LaunchState{.device = device}]() mutable {
      return RunBlocks(config, thread, state);
    };
  });
}

void SyncThreads(Site site) { Block::Current().WaitForBlock(site); }

void WaitForMemory(std::function<bool()> is_ready, Site site) {
  Block::Current().WaitForMemory(std::move(is_ready), site);
}

int LoadPinned(const volatile int* from) {
  Count(&CallCounts::pinned_loads);
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

void EndInFault(std::string what) {
  Block::Current().EndInFault(std::move(what));
}

}  // namespace lockstep::standin
