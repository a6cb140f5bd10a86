// Launches a reduction of activations to a few numbers of each channel.
// Included by .cu files alone.
#ifndef LOCKSTEP_SYNCBN_CUDA_CHANNEL_REDUCTION_H_
#define LOCKSTEP_SYNCBN_CUDA_CHANNEL_REDUCTION_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"
#include "syncbn/cuda/reduction_kernels.h"

namespace lockstep {

// A reduction of tensors of one shape: how they are cut, and for how much
// scratch memory that asks.
template <typename Reduction>
class ChannelReduction {
 public:
  ChannelReduction(const ActivationShape& shape,
                   std::span<const void* const> tensors)
      : shape_(Canonical(shape)) {
    constexpr int kWide = kVectorSize<Element>;
    const int64_t past = ElementsPastBoundary(tensors, sizeof(Element), kWide);
    wide_ = past >= 0;
    const int size = wide_ ? kWide : 1;
    if (shape_.layout == Layout::kNchw) {
      planes_ =
          CutPlanes(shape_, wide_ ? past : 0, size, Reduction::kPlanesUnroll);
      partials_ = PartialsOf(planes_);
    } else {
      rows_ = CutRows(shape_, wide_ ? past : 0, size, Reduction::kRowsUnroll);
      partials_ = PartialsOf(rows_, size);
    }
  }

  int64_t scratch_bytes() const {
    return partials_.splits * partials_.columns *
           static_cast<int64_t>(sizeof(Partial));
  }

  // scratch: device memory [scratch_bytes], aligned to 16. Only enqueues.
  absl::Status Run(const Reduction& reduction, std::byte* scratch,
                   cudaStream_t stream, absl::string_view what) const {
    Partial* const partials = reinterpret_cast<Partial*>(scratch);
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    const auto launch = [&](auto kernel, const auto& cut) {
      return CudaStatus(
          cudaLaunchKernelEx(&config, kernel, cut, reduction, partials), what);
    };
    if (partials_.splits > 0) {
      const bool planes = shape_.layout == Layout::kNchw;
      config.gridDim =
          dim3(static_cast<unsigned>(planes ? planes_.c : rows_.tiles),
               static_cast<unsigned>(partials_.splits));
      config.blockDim = dim3(static_cast<unsigned>(
          planes ? planes_.threads : rows_.width * rows_.height));
      constexpr int kWide = kVectorSize<Element>;
      LOCKSTEP_RETURN_IF_ERROR(
          planes ? (wide_ ? launch(PlanesKernel<kWide, Reduction>, planes_)
                          : launch(PlanesKernel<1, Reduction>, planes_))
                 : (wide_ ? launch(RowsKernel<kWide, Reduction>, rows_)
                          : launch(RowsKernel<1, Reduction>, rows_)));
    }
    config.gridDim = dim3(static_cast<unsigned>(shape_.c));
    config.blockDim = dim3(static_cast<unsigned>(partials_.threads));
    return launch(PartialsKernel<Reduction>, partials_);
  }

 private:
  using Element = typename Reduction::Element;
  using Partial = typename Reduction::template State<1>;

  ActivationShape shape_;
  bool wide_ = true;
  PlanesPartition planes_;
  RowsPartition rows_;
  PartialsPartition partials_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_CHANNEL_REDUCTION_H_
