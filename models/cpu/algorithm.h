// The choice of the algorithm that convolves, and of the layout of activations
// that it needs.
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
  kAuto,      // Winograd where it is faster, else direct.
  kDirect,    // Products of every weight with every pixel that it meets.
  kWinograd,  // Winograd wherever it can compute the convolution.
};

inline constexpr ConvolutionAlgorithm kConvolutionAlgorithms[] = {
    ConvolutionAlgorithm::kAuto, ConvolutionAlgorithm::kDirect,
    ConvolutionAlgorithm::kWinograd};

// "auto", "direct", "winograd".
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

// kUnimplemented, naming what is missing, for kWinograd where oneDNN has no
// Winograd: from version 3.2 on, and without AVX-512.
absl::Status CheckConvolutionAlgorithm(ConvolutionAlgorithm algorithm);

// The algorithm of that name. Error: kInvalidArgument, listing the names.
absl::StatusOr<ConvolutionAlgorithm> ConvolutionNamed(absl::string_view name);

// The algorithm of that name, for a flag --convolution. Errors:
// kInvalidArgument, beginning with the flag and its value, for an unknown name
// and for what CheckConvolutionAlgorithm refuses.
absl::StatusOr<ConvolutionAlgorithm> ParseConvolution(absl::string_view name);

// How the activations of `network` lie in memory: kNchw16c where Winograd,
// which needs it, is there and computes one of its convolutions; else kNhwc.
// Does not depend on the batch.
Layout LayoutOf(const Network& network, DataType type,
                ConvolutionAlgorithm algorithm);

// Returns kDirect if Winograd computes none of the network's convolutions in
// float32 on this machine, else `algorithm`.
ConvolutionAlgorithm ResolveConvolution(const Network& network,
                                        ConvolutionAlgorithm algorithm);

// Whether Winograd computes a convolution of x to y (for a batch of n) in
// kNchw16c. F(4x4, 3x3): kernels of 3x3 at stride 1.
bool IsWinograd(ConvolutionAlgorithm algorithm, const ConvolutionOp& op,
                const Shape& x, const Shape& y);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_ALGORITHM_H_
