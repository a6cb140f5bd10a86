// Copies of a call's data, through the caches and past them.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collectives/collective.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lockstep {

// to = from, of the same size; nothing where they are the same memory, as in
// place. Both may be null where they are empty.
inline void CopyElements(ConstBuffer from, Buffer to) {
  if (from.count == 0 || from.data == to.data) return;
  std::memcpy(to.data, from.data, static_cast<size_t>(from.size_bytes()));
}

// What a processor writes to memory at once.
inline constexpr int64_t kCacheLineBytes = 64;

// to = from, of any alignment, which do not overlap. Whole lines of `to` are
// written without being read first, as stores into a cache have it, and are
// then in no cache: a third less traffic if they are not needed soon. Other
// processors may see these bytes late, until FinishStreaming().
//
// A plain copy where the processor has no such stores.
inline void StreamCopy(const std::byte* from, std::byte* to, int64_t bytes) {
#if defined(__SSE2__)
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to));
  const int64_t to_line = -address & (kCacheLineBytes - 1);
  if (bytes >= to_line + kCacheLineBytes) {
    std::memcpy(to, from, static_cast<size_t>(to_line));
    int64_t i = to_line;
    for (; i + kCacheLineBytes <= bytes; i += kCacheLineBytes) {
      __m128i line[4];
      std::memcpy(line, from + i, sizeof(line));
      for (int k = 0; k < 4; ++k) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + k, line[k]);
      }
    }
    from += i;
    to += i;
    bytes -= i;
  }
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Makes what this thread has streamed visible before what it writes next.
inline void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_
