// One block of a kernel at a time, its threads taking turns on one host thread.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_BLOCK_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/cuda/standin/fiber.h"
#include "tools/cuda/standin/launch.h"
#include "tools/cuda/standin/types.h"

namespace lockstep::standin {

// Runs the blocks of one launch. A thread runs until it waits or exits, then
// the next goes on. A fiber that has run a thread to its end takes the next
// thread, so a kernel that never waits needs one fiber. When every thread waits
// or has exited, those whose company is complete are released; if none can be,
// that is a fault. Used by one host thread.
class Block {
 public:
  // `thread` is the kernel with its arguments; it must outlive the block.
  Block(const cudaLaunchConfig_t& config, const std::function<void()>& thread);
  ~Block();

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs the block `index`; false if it ended in a fault, after which no other
  // block can run. Threads start in descending order in every other block, so
  // that code which relies on the order fails in one of them.
  bool Run(uint3 index);

  // What went wrong, if Run returned false.
  const std::string& fault() const { return fault_; }

  // The block that this host thread runs a device thread of.
  static Block& Current();

  // For the device thread that runs; the meanings are in launch.h.
  int lane() const { return current_->linear % 32; }
  void* shared() const { return shared_.get(); }
  void WaitForBlock(Site site);
  // Waits for the lanes in `mask`, then returns what `WarpWait` computed.
  uint64_t WaitForLanes(uint32_t mask, bool predicate, uint64_t value,
                        int source, Site site);
  uint32_t votes() const { return current_->votes; }

 private:
  enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kExited };

  struct Thread {
    int linear;
    uint3 index;
    Fiber* fiber;
    State state;
    Site site;
    // Of a warp-wide wait: what this lane brings, and what it takes away.
    uint32_t mask;
    bool predicate;
    int source;
    uint64_t value;
    uint64_t result;
    uint32_t votes;
  };

  static FiberPool& Pool();

  void Reset(uint3 index);
  void RunThreads(Fiber& self);
  void MakeCurrent(Thread& thread);
  bool StartFiber();
  void Suspend(State state, Site site);
  void Fail(std::string what);

  bool Release();
  bool ReleaseLanes(size_t first_of_warp);
  bool IsComplete(size_t first_of_warp, const Thread& thread) const;
  void Exchange(size_t first_of_warp, uint32_t mask);
  bool ReleaseBlock();
  std::string Describe(const Thread& thread) const;
  std::string DescribeDivergence() const;

  const cudaLaunchConfig_t config_;
  const std::function<void()>& kernel_;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;

  // Of the block that runs.
  uint3 index_ = {};
  std::unique_ptr<void, decltype(&std::free)> shared_{nullptr, &std::free};
  std::vector<Thread> threads_;  // By linear index.
  size_t started_ = 0;
  size_t exited_ = 0;
  bool descending_ = false;
  std::deque<Thread*> ready_;
  Thread* current_ = nullptr;
  std::string fault_;
};

}  // namespace lockstep::standin

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_BLOCK_H_
