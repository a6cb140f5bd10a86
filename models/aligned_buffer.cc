// Aligned storage through the aligned operator new.
#include "models/aligned_buffer.h"

#include <algorithm>
#include <new>

namespace lockstep {

AlignedBuffer::AlignedBuffer(int64_t size)
    : size_(size),
      data_(static_cast<float*>(::operator new (
          sizeof(float) * size, std::align_val_t{kAlignment}))) {
  std::fill_n(data_.get(), size_, 0.0f);
}

void AlignedBuffer::Free::operator()(float* data) const {
  ::operator delete (data, std::align_val_t{kAlignment});
}

}  // namespace lockstep
