// Fibers on ucontext.
#include "tools/cuda/standin/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "absl/base/config.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace lockstep::standin {
namespace {

// Room for a kernel's locals with the sanitizers' red zones. Memory that is
// never touched costs nothing.
constexpr size_t kStackBytes = 256 << 10;
// At least a page on every Linux machine: an overrun faults.
constexpr size_t kGuardBytes = 64 << 10;

}  // namespace

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
  // An abandoned stack leaves its red zones behind, where memory of somebody
  // else may come to lie.
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
  // No place to save to tells AddressSanitizer that this stack is done with.
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

FiberPool::FiberPool(std::function<void(Fiber&)> work)
    : work_(std::move(work)) {}

FiberPool::~FiberPool() {
  closing_ = true;
  // Each body returns, so that AddressSanitizer frees what it keeps of it.
  for (const std::unique_ptr<Fiber>& fiber : fibers_) fiber->Resume();
}

std::unique_ptr<Fiber> FiberPool::Take() {
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

void FiberPool::Give(std::unique_ptr<Fiber> fiber) {
  fibers_.push_back(std::move(fiber));
}

}  // namespace lockstep::standin
