// The stand-in's side of device code: the keywords, built-in variables and
// functions that kernels use. Each warp-wide or block-wide call notes the line
// that made it, so that threads which wait in different places are told apart.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICE_CODE_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICE_CODE_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tools/cuda/standin/launch.h"
#include "tools/cuda/standin/types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Blocks run one after the other, so one copy serves them all. It is no
// thread's own, so that AddressSanitizer puts red zones around it.
#define __shared__ static

inline constexpr int warpSize = 32;

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

#define LOCKSTEP_STANDIN_SITE \
  ::lockstep::standin::Site site = {__builtin_FILE(), __builtin_LINE()}

inline void __syncthreads(LOCKSTEP_STANDIN_SITE) {
  lockstep::standin::SyncThreads(site);
}
inline void __syncwarp(unsigned mask = 0xffffffff, LOCKSTEP_STANDIN_SITE) {
  lockstep::standin::Ballot(mask, false, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              LOCKSTEP_STANDIN_SITE) {
  return lockstep::standin::Ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, LOCKSTEP_STANDIN_SITE) {
  return lockstep::standin::Ballot(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, LOCKSTEP_STANDIN_SITE) {
  return lockstep::standin::Ballot(mask, predicate == 0, site) == 0;
}

namespace lockstep::standin {

// This lane's copy of `value` on the lane `source` of its warp; all bits set if
// that lane is not in the exchange.
template <typename T>
T Shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = Exchange(mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace lockstep::standin

// `width` is a power of two: the warp is cut into groups of so many lanes.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize,
              LOCKSTEP_STANDIN_SITE) {
  const int first = lockstep::standin::Lane() & ~(width - 1);
  return lockstep::standin::Shuffle(mask, value, first + (source & (width - 1)),
                                    site);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 LOCKSTEP_STANDIN_SITE) {
  const int lane = lockstep::standin::Lane();
  const bool inside = static_cast<unsigned>(lane & (width - 1)) >= delta;
  return lockstep::standin::Shuffle(
      mask, value, inside ? lane - static_cast<int>(delta) : lane, site);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   LOCKSTEP_STANDIN_SITE) {
  const int lane = lockstep::standin::Lane();
  const unsigned place = static_cast<unsigned>(lane & (width - 1));
  const bool inside = delta < static_cast<unsigned>(width) - place;
  return lockstep::standin::Shuffle(
      mask, value, inside ? lane + static_cast<int>(delta) : lane, site);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  LOCKSTEP_STANDIN_SITE) {
  const int lane = lockstep::standin::Lane();
  const int source = lane ^ lane_mask;
  // A later group is out of reach; an earlier one is not.
  const bool inside = source < (lane | (width - 1)) + 1;
  return lockstep::standin::Shuffle(mask, value, inside ? source : lane, site);
}

#undef LOCKSTEP_STANDIN_SITE

// One device thread runs at a time, so plain additions are atomic.
template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
                std::is_same_v<T, unsigned long long> ||
                std::is_same_v<T, float> || std::is_same_v<T, double>);
  const T before = *address;
  // Wraps around as on a GPU, also for int.
  if constexpr (std::is_same_v<T, int>) {
    *address = static_cast<int>(static_cast<unsigned>(before) +
                                static_cast<unsigned>(value));
  } else {
    *address = before + value;
  }
  return before;
}

inline void __threadfence() {}
inline void __threadfence_block() {}

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_DEVICE_CODE_H_
