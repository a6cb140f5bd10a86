// Times Reduction::Fold of two inputs, beside memcpy:
//   bazel run //collectives/algorithms:reduction_benchmark
// Every rate counts each byte that is read or written once. Rates of memory
// that does not fit in a cache are thus comparable with the rate of copy.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "benchmark/benchmark.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// Memory that is filled with one byte, so that every page is mapped.
class Memory {
 public:
  Memory(int64_t bytes, uint8_t value)
      : bytes_(static_cast<std::byte*>(
            ::operator new(static_cast<size_t>(bytes), kAlignment))) {
    std::memset(bytes_.get(), value, static_cast<size_t>(bytes));
  }
  std::byte* data() const { return bytes_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Delete {
    void operator()(std::byte* bytes) const {
      ::operator delete(bytes, kAlignment);
    }
  };
  std::unique_ptr<std::byte, Delete> bytes_;
};

bool HoldsOnly(const void* memory, int64_t bytes, uint8_t value) {
  const auto* const data = static_cast<const std::byte*>(memory);
  return data[0] == std::byte{value} &&
         std::memcmp(data, data + 1, static_cast<size_t>(bytes - 1)) == 0;
}

// A byte whose repetition is a number in every type.
constexpr uint8_t kElements = 0x11;

std::atomic<bool> all_right = true;  // Set by all threads.

void Fail(benchmark::State& state, const char* what) {
  all_right = false;
  state.SkipWithError(what);
}

void CountBytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BM_Copy(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  const Memory from(bytes, kElements);
  const Memory to(bytes, 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(bytes));
    benchmark::ClobberMemory();
  }
  if (!HoldsOnly(to.data(), bytes, kElements)) Fail(state, "wrong copy");
  CountBytes(state, 2 * bytes);
}

enum class Outputs { kOne, kTwo, kBothInputs };

// One input is all zeros, so the sum and the maximum are the other input. In
// place only the maximum stays the same, call after call.
void BM_Fold(benchmark::State& state, DataType type, Outputs where) {
  const int64_t bytes = state.range(0);
  const Memory zeros(bytes, 0);
  const Memory elements(bytes, kElements);
  const Memory first(bytes, 2);
  const Memory second(bytes, 3);
  const void* const inputs[] = {zeros.data(), elements.data()};
  std::vector<void*> outputs = {first.data(), second.data()};
  if (where == Outputs::kOne) outputs.pop_back();
  if (where == Outputs::kBothInputs) {
    outputs = {zeros.data(), elements.data()};
  }
  const ReduceOp op =
      where == Outputs::kBothInputs ? ReduceOp::kMax : ReduceOp::kSum;
  const Reduction reduction(type, op, 2);
  for (auto _ : state) {
    reduction.Fold(inputs, outputs, bytes / SizeOf(type));
    benchmark::ClobberMemory();
  }
  for (const void* output : outputs) {
    if (!HoldsOnly(output, bytes, kElements)) Fail(state, "wrong reduction");
  }
  CountBytes(state, bytes * (2 + static_cast<int64_t>(outputs.size())));
}

// Runs in the caches, in memory, and in memory on two threads. Each of the two
// threads has its own half, as two ranks do.
void Register(const std::string& name,
              const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Arg(4 << 10)
      ->Arg(256 << 10)
      ->Arg(64 << 20)
      ->UseRealTime();
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->Arg(32 << 20)
      ->Threads(2)
      ->UseRealTime();
}

void RegisterAll() {
  Register("copy", BM_Copy);
  const std::pair<Outputs, const char*> kWhere[] = {
      {Outputs::kOne, "2_to_1"},
      {Outputs::kTwo, "2_to_2"},
      {Outputs::kBothInputs, "in_place"}};
  for (const DataType type : kAllDataTypes) {
    for (const auto& [where, name] : kWhere) {
      Register(absl::StrCat(Name(type), "/", name),
               [type, where = where](benchmark::State& state) {
                 BM_Fold(state, type, where);
               });
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  lockstep::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return lockstep::all_right ? 0 : 1;
}
