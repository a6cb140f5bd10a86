// 32-bit numbers in the byte order of the wire.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_LITTLE_ENDIAN_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

inline void AppendLittleEndian(uint32_t value, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
}

// The first four of `bytes`, which has as many.
inline uint32_t LoadLittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_LITTLE_ENDIAN_H_
