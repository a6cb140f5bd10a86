// The threads of a block: starting them, and releasing those that wait.
#include "tools/cuda/standin/block.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/cuda/standin/device_code.h"

constinit thread_local uint3 threadIdx = {};
constinit thread_local uint3 blockIdx = {};
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace lockstep::standin {
namespace {

constexpr size_t kWarp = 32;

thread_local Block* current_block = nullptr;

bool Same(const Site& a, const Site& b) {
  return a.line == b.line && std::strcmp(a.file, b.file) == 0;
}

std::string Coordinates(const uint3& v) {
  return absl::StrFormat("(%d,%d,%d)", v.x, v.y, v.z);
}

}  // namespace

Block& Block::Current() { return *current_block; }

Block::Block(const cudaLaunchConfig_t& config,
             const std::function<void()>& thread)
    : config_(config), kernel_(thread) {
  const dim3& size = config.blockDim;
  for (unsigned z = 0; z < size.z; ++z) {
    for (unsigned y = 0; y < size.y; ++y) {
      for (unsigned x = 0; x < size.x; ++x) {
        Thread thread = {};
        thread.linear = static_cast<int>(threads_.size());
        thread.index = {x, y, z};
        threads_.push_back(thread);
      }
    }
  }
}

Block::~Block() {
  // Fibers that wait in the middle of a kernel are abandoned.
  const std::set<Fiber*> idle(idle_.begin(), idle_.end());
  for (std::unique_ptr<Fiber>& fiber : fibers_) {
    if (idle.count(fiber.get()) > 0) Pool().Give(std::move(fiber));
  }
}

FiberPool& Block::Pool() {
  thread_local FiberPool pool(
      [](Fiber& fiber) { current_block->RunThreads(fiber); });
  return pool;
}

bool Block::Run(uint3 index) {
  Reset(index);
  if (!fault_.empty()) return false;
  current_block = this;
  while (fault_.empty() && exited_ < threads_.size()) {
    if (!ready_.empty()) {
      MakeCurrent(*ready_.front());
      ready_.pop_front();
      current_->fiber->Resume();
    } else if (started_ < threads_.size()) {
      if (!StartFiber()) fault_ = "no memory for the stacks of device threads";
    } else if (!Release()) {
      fault_ = DescribeDivergence();
    }
  }
  current_block = nullptr;
  return fault_.empty();
}

void Block::Reset(uint3 index) {
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
  if (config_.dynamicSmemBytes > 0) {
    // Each block gets fresh memory, so nothing is handed on from the last.
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, config_.dynamicSmemBytes) != 0) {
      fault_ = "no memory for dynamic shared memory";
      return;
    }
    std::memset(memory, 0xff, config_.dynamicSmemBytes);
    shared_.reset(memory);
  }
}

bool Block::StartFiber() {
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

void Block::RunThreads(Fiber& self) {
  while (started_ < threads_.size()) {
    const size_t next = started_++;
    Thread& thread = threads_[descending_ ? threads_.size() - 1 - next : next];
    thread.fiber = &self;
    thread.state = State::kReady;
    MakeCurrent(thread);
    kernel_();
    thread.state = State::kExited;
    ++exited_;
  }
  idle_.push_back(&self);
}

void Block::MakeCurrent(Thread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
}

void Block::Suspend(State state, Site site) {
  current_->state = state;
  current_->site = site;
  current_->fiber->Suspend();
}

void Block::Fail(std::string what) {
  fault_ = std::move(what);
  // Run returns, and nobody comes back here.
  current_->fiber->Suspend();
}

void Block::WaitForBlock(Site site) { Suspend(State::kAtBlockBarrier, site); }

uint64_t Block::WaitForLanes(uint32_t mask, bool predicate, uint64_t value,
                             int source, Site site) {
  if ((mask >> lane() & 1) == 0) {
    Fail(absl::StrFormat(
        "block %s: thread %s is not in the mask %#x that it names at %s:%d",
        Coordinates(index_), Coordinates(current_->index), mask, site.file,
        site.line));
  }
  current_->mask = mask;
  current_->predicate = predicate;
  current_->value = value;
  current_->source = source;
  Suspend(State::kAtWarpBarrier, site);
  return current_->result;
}

bool Block::Release() {
  bool released = false;
  for (size_t first = 0; first < threads_.size(); first += kWarp) {
    while (ReleaseLanes(first)) released = true;
  }
  if (!released) released = ReleaseBlock();
  // Threads go on in the order in which they started.
  std::sort(ready_.begin(), ready_.end(), [this](Thread* a, Thread* b) {
    return descending_ ? a->linear > b->linear : a->linear < b->linear;
  });
  return released;
}

bool Block::ReleaseLanes(size_t first_of_warp) {
  const size_t end = std::min(first_of_warp + kWarp, threads_.size());
  for (size_t i = first_of_warp; i < end; ++i) {
    if (threads_[i].state == State::kAtWarpBarrier &&
        IsComplete(first_of_warp, threads_[i])) {
      Exchange(first_of_warp, threads_[i].mask);
      return true;
    }
  }
  return false;
}

bool Block::IsComplete(size_t first_of_warp, const Thread& thread) const {
  const size_t end = std::min(first_of_warp + kWarp, threads_.size());
  for (size_t i = first_of_warp; i < end; ++i) {
    const Thread& other = threads_[i];
    const bool named = (thread.mask >> (i - first_of_warp) & 1) != 0;
    // Lanes that have exited are not waited for.
    if (!named || other.state == State::kExited) continue;
    if (other.state != State::kAtWarpBarrier || other.mask != thread.mask ||
        !Same(other.site, thread.site)) {
      return false;
    }
  }
  return true;
}

void Block::Exchange(size_t first_of_warp, uint32_t mask) {
  const auto lane_of = [&](int lane) -> Thread* {
    const size_t i = first_of_warp + static_cast<size_t>(lane);
    const bool here = (mask >> lane & 1) != 0 && i < threads_.size() &&
                      threads_[i].state == State::kAtWarpBarrier;
    return here ? &threads_[i] : nullptr;
  };
  std::vector<Thread*> lanes;
  uint32_t votes = 0;
  for (int lane = 0; lane < static_cast<int>(kWarp); ++lane) {
    Thread* const thread = lane_of(lane);
    if (thread == nullptr) continue;
    lanes.push_back(thread);
    if (thread->predicate) votes |= 1u << lane;
  }
  for (Thread* const thread : lanes) {
    const Thread* const source = lane_of(thread->source);
    thread->result = source == nullptr ? ~uint64_t{0} : source->value;
    thread->votes = votes;
  }
  for (Thread* const thread : lanes) {
    thread->state = State::kReady;
    ready_.push_back(thread);
  }
}

bool Block::ReleaseBlock() {
  for (const Thread& thread : threads_) {
    if (thread.state != State::kAtBlockBarrier ||
        !Same(thread.site, threads_.front().site)) {
      return false;
    }
  }
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    ready_.push_back(&thread);
  }
  return true;
}

std::string Block::Describe(const Thread& thread) const {
  const std::string name = "thread " + Coordinates(thread.index);
  if (thread.state == State::kExited) return name + " has exited";
  std::string what = absl::StrFormat("%s waits at %s:%d", name,
                                     thread.site.file, thread.site.line);
  if (thread.state == State::kAtWarpBarrier) {
    what += absl::StrFormat(" for lanes %#x", thread.mask);
  }
  return what;
}

std::string Block::DescribeDivergence() const {
  const auto waits = [](const Thread& t) { return t.state != State::kExited; };
  const Thread& waiter = *std::find_if(threads_.begin(), threads_.end(), waits);
  const auto elsewhere = [&](const Thread& t) {
    return t.state != waiter.state || !Same(t.site, waiter.site) ||
           t.mask != waiter.mask;
  };
  const auto other = std::find_if(threads_.begin(), threads_.end(), elsewhere);
  return absl::StrFormat(
      "block %s: divergence: %s, %s", Coordinates(index_), Describe(waiter),
      other == threads_.end() ? "and nobody comes" : Describe(*other));
}

}  // namespace lockstep::standin
