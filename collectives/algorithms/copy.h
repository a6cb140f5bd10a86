// Copies between a call's input and output.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_

#include <cstddef>
#include <cstring>

#include "collectives/buffer.h"

namespace lockstep {

// to = from, of the same size; nothing where they are the same memory, as in
// place. Both may be null where they are empty.
inline void CopyElements(ConstBuffer from, Buffer to) {
  if (from.count == 0 || from.data == to.data) return;
  std::memcpy(to.data, from.data, static_cast<size_t>(from.size_bytes()));
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_COPY_H_
