#include "models/cpu/algorithm.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "models/cpu/onednn.h"
#include "models/networks/network.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

constexpr int64_t kTile = 4;  // The rows and columns of an output's tile.

// Winograd was faster from these sizes on, with AVX-512. With fewer tiles in a
// batch the transformed weights serve too few products; with fewer channels the
// transformed images do. 16 channels are slower, 32 up to 1.6 times as fast.
constexpr int64_t kFewestTiles = 64;
constexpr int64_t kFewestChannels = 32;

// Returns whether Winograd supports the operation, whatever the shapes.
bool FitsWinograd(const ConvolutionOp& op) {
  return op.kernel == 3 && op.stride == 1 && op.padding <= 1;
}

// Returns whether the operation supports kNchw16c: its blocks of channels are
// full, or it is a linear layer on images of one pixel, which have the same
// layout in kNhwc. x: the shape of the first input.
bool FitsBlocks(const Network::Operation& operation, const Shape& x) {
  if (const auto* op = std::get_if<LinearOp>(&operation.kind)) {
    return !op->per_position && x.h == 1 && x.w == 1;
  }
  const bool known =
      std::holds_alternative<ConvolutionOp>(operation.kind) ||
      std::holds_alternative<BatchNormOp>(operation.kind) ||
      std::holds_alternative<PoolOp>(operation.kind) ||
      std::holds_alternative<GlobalAveragePoolOp>(operation.kind) ||
      std::holds_alternative<AddOp>(operation.kind);
  return known && operation.output.c % kChannelBlock == 0;
}

}  // namespace

absl::Status CheckConvolutionAlgorithm(ConvolutionAlgorithm algorithm) {
  if (algorithm != ConvolutionAlgorithm::kWinograd || onednn::HasWinograd()) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR,
      " has no Winograd convolution on this machine: versions before 3.2 have "
      "it, on processors with AVX-512"));
}

absl::Status CheckActivationType(DataType type) {
  if (type != DataType::kFloat32 && type != DataType::kBFloat16) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations of ", Name(type), " are not supported"));
  }
  if (type == DataType::kFloat32 || onednn::HasBFloat16()) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR,
      " does not compute in bfloat16 on this machine: it needs a processor "
      "with AVX-512"));
}

absl::StatusOr<ConvolutionAlgorithm> ConvolutionNamed(absl::string_view name) {
  for (const ConvolutionAlgorithm algorithm : kConvolutionAlgorithms) {
    if (name == Name(algorithm)) return algorithm;
  }
  return absl::InvalidArgumentError("must be auto, direct or winograd");
}

absl::StatusOr<ConvolutionAlgorithm> ParseConvolution(absl::string_view name) {
  const auto algorithm = ConvolutionNamed(name);
  if (!algorithm.ok()) {
    return FlagError("convolution", name, algorithm.status().message());
  }
  const absl::Status available = CheckConvolutionAlgorithm(*algorithm);
  if (!available.ok()) {
    return FlagError("convolution", name, available.message());
  }
  return *algorithm;
}

Layout LayoutOf(const Network& network, DataType type,
                ConvolutionAlgorithm algorithm) {
  if (type != DataType::kFloat32 ||
      algorithm == ConvolutionAlgorithm::kDirect) {
    return Layout::kNhwc;
  }
  // oneDNN's convolutions read images of 1 or 3 channels plane by plane.
  const Shape& input = network.input_shape();
  if (input.c != 1 && input.c != 3 && input.c % kChannelBlock != 0) {
    return Layout::kNhwc;
  }
  bool gains = false;
  for (const Network::Operation& operation : network.operations()) {
    const Shape& x = network.ShapeOf(operation.inputs[0]);
    if (!FitsBlocks(operation, x)) return Layout::kNhwc;
    const auto* const op = std::get_if<ConvolutionOp>(&operation.kind);
    if (op == nullptr || !FitsWinograd(*op)) continue;
    if (x.c % kChannelBlock != 0) continue;
    gains |= algorithm == ConvolutionAlgorithm::kWinograd ||
             std::min(x.c, operation.output.c) >= kFewestChannels;
  }
  return gains && onednn::HasWinograd() ? Layout::kNchw16c : Layout::kNhwc;
}

ConvolutionAlgorithm ResolveConvolution(const Network& network,
                                        ConvolutionAlgorithm algorithm) {
  return LayoutOf(network, DataType::kFloat32, algorithm) == Layout::kNchw16c
             ? algorithm
             : ConvolutionAlgorithm::kDirect;
}

bool IsWinograd(ConvolutionAlgorithm algorithm, const ConvolutionOp& op,
                const Shape& x, const Shape& y) {
  if (!FitsWinograd(op) || x.c % kChannelBlock != 0) return false;
  if (algorithm != ConvolutionAlgorithm::kAuto) {
    return algorithm == ConvolutionAlgorithm::kWinograd;
  }
  const auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
  return std::min(x.c, y.c) >= kFewestChannels &&
         y.n * tiles(y.h) * tiles(y.w) >= kFewestTiles;
}

}  // namespace lockstep
