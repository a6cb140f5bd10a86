// Increments at places that a hash of a counter chooses.
#include "benchmarks/sampler/random_updates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <numeric>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep::benchmarks {
namespace {

// The finalizer of MurmurHash3: two multiplications, which vectorise.
inline uint32_t Hash(uint32_t value) {
  value = (value ^ (value >> 16)) * 0x85ebca6bu;
  value = (value ^ (value >> 13)) * 0xc2b2ae35u;
  return value ^ (value >> 16);
}

void Update(int32_t* table, int64_t size) {
  std::array<uint32_t, 512> places;
  for (int64_t first = 0; first < size; first += places.size()) {
    for (uint32_t k = 0; k < places.size(); ++k) {
      const uint64_t hash = Hash(static_cast<uint32_t>(first) + k);
      places[k] = static_cast<uint32_t>((hash * size) >> 32);
    }
    const auto count = std::min<int64_t>(places.size(), size - first);
    for (int64_t k = 0; k < count; ++k) ++table[places[k]];
  }
}

}  // namespace

absl::StatusOr<double> TimeRandomUpdates(int64_t size) {
  const std::unique_ptr<int32_t[]> table(new (std::nothrow) int32_t[size]);
  if (table == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a table of ", size));
  }
  std::fill_n(table.get(), size, 0);
  const auto start = std::chrono::steady_clock::now();
  Update(table.get(), size);
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  const int64_t updates =
      std::accumulate(table.get(), table.get() + size, int64_t{0});
  if (updates == size) return elapsed.count();
  return absl::DataLossError(
      absl::StrCat(size - updates, " of ", size, " updates were lost"));
}

}  // namespace lockstep::benchmarks
