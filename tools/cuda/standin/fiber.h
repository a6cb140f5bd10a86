// Stacks that a thread can leave and come back to.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_FIBER_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_FIBER_H_

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep::standin {

// Runs `body` on a stack of its own, in turns with the thread that resumes it.
// AddressSanitizer and ThreadSanitizer are told of every switch. Used by one
// thread. Destroying a fiber whose body has not returned abandons it: nothing
// on its stack is destroyed.
class Fiber {
 public:
  // Null if there is no memory for the stack.
  static std::unique_ptr<Fiber> Create(std::function<void(Fiber&)> body);
  ~Fiber();

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on with the body until it suspends or returns; not after it returned.
  void Resume();

  // Called by the body: goes back to where Resume was called.
  void Suspend();

 private:
  Fiber(std::function<void(Fiber&)> body, std::byte* memory);

  static void Enter(unsigned high, unsigned low);
  void SwitchToOwner(void** fake_stack);

  const std::function<void(Fiber&)> body_;
  std::byte* const memory_;  // A guard page, and the stack above it.
  ucontext_t context_;
  ucontext_t owner_;

  // What the sanitizers need; unused without them.
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] const void* owner_stack_ = nullptr;
  [[maybe_unused]] size_t owner_stack_size_ = 0;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] void* tsan_owner_ = nullptr;
};

// Fibers to use again: making one is slow, above all with ThreadSanitizer. Used
// by one thread.
class FiberPool {
 public:
  // The fibers call `work` each time they are resumed, and suspend after it.
  explicit FiberPool(std::function<void(Fiber&)> work);
  ~FiberPool();

  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // Null if there is no memory for another.
  std::unique_ptr<Fiber> Take();

  // Takes back a fiber that is not in the middle of `work`.
  void Give(std::unique_ptr<Fiber> fiber);

 private:
  const std::function<void(Fiber&)> work_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  bool closing_ = false;
};

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_FIBER_H_
