// Launches kernels. A launch runs one block at a time; the block's threads take
// turns on one host thread.
#include "standin/include/device_code.h"

#include <sys/mman.h>
#include <sys/types.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
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

// The progress of a launch.
struct LaunchState {
  int device = 0;
  // Whether its blocks run on the device thread, where they can be suspended.
  bool can_suspend = false;
  // Whether a block waits for memory although it cannot be suspended.
  bool must_move = false;
  // For each wait for memory of the launch, whether it has no effect.
  std::vector<bool> dropped = {};
};

// Runs one block of a launch after the other. A thread runs until it waits or
// exits, then the next thread continues. A fiber that has run a thread to its
// end takes the next thread, so a kernel that never waits needs one fiber. When
// every thread waits at the same barrier, all are released. If some have exited
// or wait elsewhere, the block ends in a fault. One host thread owns a Block.
class Block {
 public:
  enum class Result { kEnded, kWaits, kFault };

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

  // Runs the block `index` until it ends or waits for memory. No other block
  // may run on this object after a fault, or before the block has ended. In
  // every second block the threads start in descending order, so that code
  // which relies on the order fails in one of the blocks.
  Result Run(uint3 index) {
    Reset(index);
    return Continue();
  }

  // Goes on with a block that waits for memory.
  Result Continue() {
    current_block = this;
    SetCoordinates();
    Result result = Result::kWaits;
    while (!state_.must_move) {
      if (!fault_.empty()) {
        result = Result::kFault;
        break;
      }
      if (exited_ == threads_.size()) {
        result = Result::kEnded;
        break;
      }
      if (!ready_.empty()) {
        MakeCurrent(*ready_.front());
        ready_.pop_front();
        current_->fiber->Resume();
      } else if (started_ < threads_.size()) {
        if (!StartFiber())
          fault_ = "no memory for the stacks of device threads";
      } else if (!AllAreAtOneBarrier()) {
        fault_ = DescribeDivergence();
      } else if (MayPass()) {
        ReleaseBarrier();
      } else {
        break;
      }
    }
    current_block = nullptr;
    return result;
  }

  // Returns whether all that the block's threads wait for has happened.
  bool MayPass() const {
    return std::ranges::all_of(conditions_,
                               [](const auto& holds) { return holds(); });
  }

  // Returns the fault of a block that ended in one.
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
    if (!state_.can_suspend) {
      state_.must_move = true;
      is_ready = nullptr;  // An abandoned fiber's locals are never destroyed.
      current_->fiber->Suspend();
      std::abort();
    }
    const size_t wait = current_->memory_waits++;
    if (wait == state_.dropped.size()) {
      state_.dropped.push_back(
          Device::Get().ShouldDropMemoryWait(state_.device));
    }
    if (!state_.dropped[wait]) conditions_.push_back(std::move(is_ready));
    is_ready = nullptr;
    Device::Get().NoteProgress();  // The kernel's writes may be awaited.
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
    size_t memory_waits;
  };

  static FiberPool& Pool() {
    thread_local FiberPool pool(
        [](Fiber& fiber) { current_block->RunThreads(fiber); });
    return pool;
  }

  void SetCoordinates() const {
    blockIdx = index_;
    blockDim = config_.blockDim;
    gridDim = config_.gridDim;
  }

  void Reset(uint3 index) {
    index_ = index;
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
      thread.memory_waits = 0;
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

  bool AllAreAtOneBarrier() const {
    return std::ranges::all_of(threads_, [this](const Thread& thread) {
      return thread.state == State::kAtBarrier &&
             IsSameSite(thread.site, threads_.front().site);
    });
  }

  // Releases all threads, in the order in which they started.
  void ReleaseBarrier() {
    conditions_.clear();
    for (Thread& thread : threads_) {
      thread.state = State::kReady;
      ready_.push_back(&thread);
    }
    if (descending_) std::reverse(ready_.begin(), ready_.end());
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
  // The conditions that the threads wait for, besides each other.
  std::vector<std::function<bool()>> conditions_;
  Thread* current_ = nullptr;
  std::string fault_;
};

void ReportFault(std::string_view what) {
  std::fprintf(stderr, "stand-in kernel fault: %s\n",
               std::string(what).c_str());
  SetFault(std::string(what));
}

// The host thread that runs all launches whose blocks wait for memory. Such a
// block is suspended, and only the thread that began it may go on with it. The
// caller waits, so device code still runs one piece at a time.
class DeviceThread {
 public:
  // Returns the process's thread. A process that was forked starts its own.
  static DeviceThread& Get() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
    static DeviceThread* thread = nullptr;  // Never destroyed.
    if (thread == nullptr || thread->process_ != getpid()) {
      thread = new DeviceThread;
    }
    return *thread;
  }

  // Runs `work` on the thread, and blocks until it has returned.
  void Run(std::function<void()> work) {
    MutexLock lock(mutex_);
    work_ = std::move(work);
    changed_.NotifyAll();
    changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return work_ == nullptr;
    });
  }

 private:
  DeviceThread() {
    std::thread([this] { Work(); }).detach();
  }

  void Work() {
    MutexLock lock(mutex_);
    for (;;) {
      changed_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return work_ != nullptr;
      });
      work_();
      work_ = nullptr;
      changed_.NotifyAll();
    }
  }

  const pid_t process_ = getpid();
  Mutex mutex_;
  ConditionVariable changed_;
  std::function<void()> work_ ABSL_GUARDED_BY(mutex_);
};

// The blocks of a launch that wait for memory, on the device thread.
class SuspendedBlocks {
 public:
  // blocks: those that have not ended.
  SuspendedBlocks(const cudaLaunchConfig_t& config,
                  const std::function<void()>& thread, LaunchState& state,
                  std::span<const uint3> blocks)
      : config_(config),
        kernel_(thread),
        state_(state),
        to_start_(blocks.begin(), blocks.end()) {}

  // Runs all blocks as far as they can run. Returns whether all have ended, or
  // one in a fault.
  bool Continue() {
    state_.can_suspend = true;
    state_.must_move = false;
    for (const uint3& index : std::exchange(to_start_, {})) {
      auto block = std::make_unique<Block>(config_, kernel_, state_);
      if (!Keep(block->Run(index), block)) return true;
    }
    for (bool progressed = true; progressed;) {
      progressed = false;
      for (auto& block : std::exchange(waiting_, {})) {
        if (!block->MayPass()) {
          waiting_.push_back(std::move(block));
          continue;
        }
        progressed = true;
        if (!Keep(block->Continue(), block)) return true;
      }
    }
    return waiting_.empty();
  }

 private:
  // Keeps a block that waits. Returns false if the block ended in a fault.
  bool Keep(Block::Result result, std::unique_ptr<Block>& block) {
    if (result == Block::Result::kWaits) waiting_.push_back(std::move(block));
    if (result != Block::Result::kFault) return true;
    ReportFault(block->fault());
    waiting_.clear();
    return false;
  }

  const cudaLaunchConfig_t config_;
  const std::function<void()>& kernel_;
  LaunchState& state_;
  std::vector<uint3> to_start_;
  std::vector<std::unique_ptr<Block>> waiting_;
};

// Returns the blocks of a grid in the order in which they run.
std::vector<uint3> BlocksOf(const dim3& grid)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {  // Work on streams runs under the lock.
  std::vector<uint3> blocks;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  const BlockOrder order = Device::Get().schedule().block_order;
  if (order == BlockOrder::kDescending) std::ranges::reverse(blocks);
  // The order depends only on the number of blocks.
  if (order == BlockOrder::kShuffled) {
    std::ranges::shuffle(blocks, std::mt19937());
  }
  return blocks;
}

// A launch. Its blocks run one after the other on the calling host thread, as
// long as none waits for memory.
class LaunchedKernel {
 public:
  LaunchedKernel(const cudaLaunchConfig_t& config, std::function<void()> thread,
                 int device)
      : config_(config), kernel_(std::move(thread)), state_{.device = device} {}

  ~LaunchedKernel() {
    if (suspended_ == nullptr) return;
    OnDeviceThread([this] { suspended_ = nullptr; });
  }

  LaunchedKernel(const LaunchedKernel&) = delete;
  LaunchedKernel& operator=(const LaunchedKernel&) = delete;

  // Runs the launch as far as it can run. Returns whether it has ended.
  bool Continue() {
    if (suspended_ == nullptr && RunHere()) return true;
    bool ended = false;
    OnDeviceThread([this, &ended] { ended = suspended_->Continue(); });
    return ended;
  }

 private:
  static void OnDeviceThread(std::function<void()> work)
      ABSL_NO_THREAD_SAFETY_ANALYSIS {  // Work on streams runs under the lock.
    DeviceThread::Get().Run(std::move(work));
  }

  // Returns whether the launch has ended.
  bool RunHere() {
    const std::vector<uint3> blocks = BlocksOf(config_.gridDim);
    Block block(config_, kernel_, state_);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Block::Result result = block.Run(blocks[i]);
      if (result == Block::Result::kEnded) continue;
      if (result == Block::Result::kFault) {
        ReportFault(block.fault());
        return true;
      }
      suspended_ = std::make_unique<SuspendedBlocks>(
          config_, kernel_, state_, std::span(blocks).subspan(i));
      return false;
    }
    return true;
  }

  const cudaLaunchConfig_t config_;
  const std::function<void()> kernel_;
  LaunchState state_;
  std::unique_ptr<SuspendedBlocks> suspended_;
};

cudaError_t Check(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (config.numAttrs != 0 || config.dynamicSmemBytes != 0) {
    return cudaErrorNotSupported;
  }
  if (DeviceOfStream(config.stream) != CurrentDevice()) {
    return cudaErrorInvalidResourceHandle;
  }
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
    return [kernel = std::make_shared<LaunchedKernel>(config, thread, device)] {
      return kernel->Continue();
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
