// The parts of a statistics record, as kernels use them. Included by .cu files
// alone.
#ifndef LOCKSTEP_SYNCBN_CUDA_RECORD_VIEW_H_
#define LOCKSTEP_SYNCBN_CUDA_RECORD_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "collectives/buffer.h"
#include "collectives/data_type.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// F: float or const float. Pointers into device memory.
template <typename F>
struct RecordView {
  template <typename T>
  using AsConstAsF = std::conditional_t<std::is_const_v<F>, const T, T>;

  AsConstAsF<int64_t>* count = nullptr;
  F* mean = nullptr;
  F* second = nullptr;  // M2, or the inverse deviation.
};

// record: a StatisticsRecord of float32 at an address that 16 divides.
template <typename F>
RecordView<F> ViewRecord(
    typename RecordView<F>::template AsConstAsF<std::byte>* record,
    int64_t channels) {
  using View = RecordView<F>;
  const StatisticsRecord layout = {.channels = channels,
                                   .type = DataType::kFloat32};
  using Count = typename View::template AsConstAsF<int64_t>;
  return {reinterpret_cast<Count*>(record),
          reinterpret_cast<F*>(record + layout.mean_offset()),
          reinterpret_cast<F*>(record + layout.second_offset())};
}

// Sets the count, and the record's gaps, which are sent and saved too, to 0.
__device__ inline void StartRecord(const RecordView<float>& record,
                                   int64_t channels, int64_t count) {
  record.count[0] = count;
  record.count[1] = 0;
  // Both arrays together are rounded up to 4 floats.
  if (channels % 2 != 0) {
    record.second[channels] = 0;
    record.second[channels + 1] = 0;
  }
}

// What an optional buffer points to: null if it has no elements.
template <typename T>
const T* PointerOrNull(const ConstBuffer& buffer) {
  return buffer.count == 0 ? nullptr : static_cast<const T*>(buffer.data);
}
template <typename T>
T* PointerOrNull(const Buffer& buffer) {
  return buffer.count == 0 ? nullptr : static_cast<T*>(buffer.data);
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_RECORD_VIEW_H_
