// Selects the convolution algorithm, and the layout of activations that it
// needs.
#ifndef LOCKSTEP_MODELS_CPU_ALGORITHM_H_
#define LOCKSTEP_MODELS_CPU_ALGORITHM_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "models/networks/network.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

enum class ConvolutionAlgorithm {
  kAuto,      // Winograd if it is faster, otherwise direct.
  kDirect,    // Multiplies every weight with every pixel it meets.
  kWinograd,  // Winograd wherever it supports the convolution.
};

inline constexpr ConvolutionAlgorithm kConvolutionAlgorithms[] = {
    ConvolutionAlgorithm::kAuto, ConvolutionAlgorithm::kDirect,
    ConvolutionAlgorithm::kWinograd};

// Returns "auto", "direct" or "winograd".
constexpr const char* Name(ConvolutionAlgorithm algorithm) {
  switch (algorithm) {
    case ConvolutionAlgorithm::kAuto:
      return "auto";
    case ConvolutionAlgorithm::kDirect:
      return "direct";
    default:
      return "winograd";
  }
}

// Returns kUnimplemented, naming what is missing, if the algorithm is kWinograd
// and oneDNN has no Winograd. oneDNN has it in versions before 3.2, on
// processors with AVX-512.
absl::Status CheckConvolutionAlgorithm(ConvolutionAlgorithm algorithm);

// Returns kUnimplemented, naming what is missing, if this machine does not
// compute activations of the type. oneDNN computes in bfloat16 on processors
// with AVX-512.
absl::Status CheckActivationType(DataType type);

// Returns the algorithm of that name. Error: kInvalidArgument, listing the
// names.
absl::StatusOr<ConvolutionAlgorithm> ConvolutionNamed(absl::string_view name);

// Returns the algorithm named by the flag --convolution. Error:
// kInvalidArgument, beginning with the flag and its value, if the name is
// unknown or CheckConvolutionAlgorithm returns an error.
absl::StatusOr<ConvolutionAlgorithm> ParseConvolution(absl::string_view name);

// Returns the memory layout of the activations of `network`. The layout is
// kNchw16c if three things are true: Winograd, which needs it, is available for
// `type`; every operation supports kNchw16c; and `algorithm` gives a
// convolution to Winograd. Otherwise it is kNhwc. The layout does not depend on
// the batch.
Layout LayoutOf(const Network& network, DataType type,
                ConvolutionAlgorithm algorithm);

// Returns `algorithm`, or kDirect if Winograd computes none of the network's
// convolutions in float32 on this machine.
ConvolutionAlgorithm ResolveConvolution(const Network& network,
                                        ConvolutionAlgorithm algorithm);

// Returns whether Winograd computes the convolution of x to y in kNchw16c, for
// a batch of n. The variant is F(4x4, 3x3): kernels of 3x3 at stride 1.
bool IsWinograd(ConvolutionAlgorithm algorithm, const ConvolutionOp& op,
                const Shape& x, const Shape& y);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_ALGORITHM_H_
