// How fast all cores together copy memory.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_COPY_BANDWIDTH_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_COPY_BANDWIDTH_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rank_service.h"

namespace lockstep::benchmarks {

// One thread's part of the memory: two halves, one of which is copied to the
// other.
class Copier {
 public:
  // half: bytes, at least 1. Error: kResourceExhausted without memory.
  static absl::StatusOr<Copier> Create(int64_t half);

  // Touches all of the memory; then the halves differ in every byte.
  void Prepare();
  // Is done when it returns, whatever the compiler thinks of clocks around it.
  void Copy();
  // Bytes that differ: 0 after a copy.
  int64_t CountWrong() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::byte* source() const { return memory_.get(); }
  std::byte* target() const { return memory_.get() + apart_; }

  int64_t half_ = 0;
  int64_t apart_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

// Copies with `threads` threads at once, which together own `bytes` of memory:
// each copies the first half of its part to the second, which reads bytes / 2
// and writes bytes / 2 in all. `warmup` copies do not count; each of the
// `iterations` others takes as long as in its slowest thread. result.wrong is
// the number of bytes that were not copied. bytes: at least 2 a thread. Error:
// kResourceExhausted without memory.
absl::StatusOr<TimedCalls> TimeCopies(int threads, int64_t bytes, int warmup,
                                      int iterations);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_COPY_BANDWIDTH_H_
