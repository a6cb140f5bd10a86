// gradients: loss, gradients and buffers of one step.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/catch_bad_alloc.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/data/load_dataset.h"
#include "models/data/transform.h"
#include "models/io/safetensors.h"
#include "models/networks/networks.h"
#include "models/train/common_flags.h"
#include "models/train/device.h"
#include "models/train/gradients_run.h"

ABSL_FLAG(std::string, model, "lenet",
          "the network, perhaps with options (vit:patch=4,depth=6); the "
          "networks are listed below");
ABSL_FLAG(std::string, weights, "",
          "the file with every parameter (float32) and every buffer (float32, "
          "num_batches_tracked int64) under the names of the network's source: "
          "a state_dict of torchvision, timm or d2l as safetensors, or a "
          "checkpoint of train. With --dtype=float64, floats may be float64");
ABSL_FLAG(std::string, batch, "",
          "the file with images: float32 [n, c, h, w], of any size that the "
          "network accepts, and labels: int64 [n], below the classes of the "
          "last layer in W; n is at least 1, and may be below the number of "
          "ranks");
ABSL_FLAG(int64_t, num_classes, 0,
          "number of classes that the weights must have; 0: any number");
ABSL_FLAG(std::string, image_size, "0",
          "size that the images must have: 224, or 192x256, height first; 0: "
          "any size");
ABSL_FLAG(int64_t, in_channels, 0,
          "number of channels that the images must have; 0: any number");
ABSL_FLAG(
    std::string, dtype, "float32",
    "float32, or float64, for comparisons: computed in plain loops on one "
    "thread of each rank, a hundred times slower; ranks that wait for a "
    "busy rank may need a larger --timeout_s");
ABSL_FLAG(std::string, out, "",
          "the file that receives every parameter's gradient and every buffer, "
          "as rank 0 has it after the step, under the same names, and loss: "
          "[1]; floats have the type of --dtype");
ABSL_FLAG(
    int, nproc, 1,
    "number of ranks; rank r takes the r-th block of ceil(n / nproc) images");
ABSL_FLAG(bool, sync_bn, false,
          "normalise with the statistics of the whole batch, over all ranks; "
          "otherwise each rank normalises its block alone, as PyTorch's "
          "DataParallel does");
ABSL_FLAG(
    std::string, convolution, "auto",
    "for float32: auto (Winograd where it is faster), direct, or winograd "
    "(wherever it is possible; see train --help)");
ABSL_FLAG(std::string, device, "cpu",
          "the device that computes: cpu; cuda, where the ranks share the GPUs "
          "in turn (float32); or auto: cuda if there is a GPU");
ABSL_FLAG(int, threads_per_rank, 1, "number of compute threads of each rank");
ABSL_FLAG(double, timeout_s, 600, "seconds that a rank waits for another rank");

namespace lockstep {
namespace {

Usage GradientsUsage() {
  return {
      .command = "gradients",
      .introduction =
          R"(gradients --weights=W.safetensors --batch=B.safetensors --out=G.safetensors
          [FLAGS]

Computes the loss, the gradients and the buffers of one training step on one or
more ranks, which are threads that each take a block of the batch. Only the
buffers are updated. However the batch is split, the loss is the mean over the
whole batch, and the gradients are those of this mean.
)",
      .sections = {{"", "model weights=FILE batch=FILE out=FILE"},
                   {"", "num_classes image_size in_channels dtype"},
                   {"",
                    "nproc sync_bn device threads_per_rank convolution "
                    "timeout_s"}},
      .ending = absl::StrCat("Networks:\n", NetworksHelp(), R"(
Relative paths start from the folder in which bazel was called.

Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else.
)"),
      .aliases = {{"world_size", "nproc"}}};
}

// Reads --device. A GPU has no float64 and no choice of convolutions.
absl::StatusOr<ComputeDevice> ReadDevice(const GradientsOptions& options,
                                         char* const* argv) {
  absl::string_view why_not;
  if (options.dtype != DataType::kFloat32) {
    why_not = "computes float32; --device=cpu computes float64";
  } else if (options.convolution != ConvolutionAlgorithm::kAuto) {
    why_not = "chooses its convolutions itself";
  }
  std::string note;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const ComputeDevice device,
      ChooseDevice(absl::GetFlag(FLAGS_device), why_not, argv, note));
  if (!note.empty()) absl::FPrintF(stderr, "gradients: %s\n", note);
  return device;
}

absl::StatusOr<std::string> Path(absl::string_view flag,
                                 const std::string& path) {
  if (path.empty()) {
    return FlagError(flag, path, "must name a file; see --help");
  }
  return ResolveUserPath(path);
}

absl::StatusOr<SafetensorsFile> Read(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(Safetensors content, ReadSafetensors(path));
  return SafetensorsFile{path, std::move(content)};
}

// Reads the flags for the type and for the sizes that the files must have.
absl::Status ReadExpectations(GradientsOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.dtype, ParseName<DataType>("--dtype", absl::GetFlag(FLAGS_dtype),
                                         {{"float32", DataType::kFloat32},
                                          {"float64", DataType::kFloat64}}));
  options.num_classes = absl::GetFlag(FLAGS_num_classes);
  options.in_channels = absl::GetFlag(FLAGS_in_channels);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--num_classes", options.num_classes, 0, kMaxClasses));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--in_channels", options.in_channels, 0, 1 << 16));
  const std::string size = absl::GetFlag(FLAGS_image_size);
  TransformOptions transform;
  const absl::Status parsed = ParseImageSize(size, transform);
  if (!parsed.ok()) return FlagError("image_size", size, parsed.message());
  options.image_height = transform.height;
  options.image_width = transform.width;
  return absl::OkStatus();
}

absl::Status ComputeAndWrite(char* const* argv) {
  GradientsOptions options;
  LOCKSTEP_RETURN_IF_ERROR(ReadExpectations(options));
  options.model = absl::GetFlag(FLAGS_model);
  options.world_size = absl::GetFlag(FLAGS_nproc);
  options.threads_per_rank = absl::GetFlag(FLAGS_threads_per_rank);
  options.sync_bn = absl::GetFlag(FLAGS_sync_bn);
  LOCKSTEP_ASSIGN_OR_RETURN(options.convolution,
                            ChooseConvolution(absl::GetFlag(FLAGS_convolution),
                                              /*deterministic=*/false));
  LOCKSTEP_ASSIGN_OR_RETURN(options.device, ReadDevice(options, argv));
  const double timeout = absl::GetFlag(FLAGS_timeout_s);
  LOCKSTEP_RETURN_IF_ERROR(CheckCommonFlags(options.model, options.sync_bn,
                                            options.world_size,
                                            options.threads_per_rank, timeout));
  options.group.timeout = absl::Seconds(timeout);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string weights_path,
                            Path("weights", absl::GetFlag(FLAGS_weights)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string batch_path,
                            Path("batch", absl::GetFlag(FLAGS_batch)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string out_path,
                            Path("out", absl::GetFlag(FLAGS_out)));
  // The path is checked first, since the step may take minutes.
  LOCKSTEP_RETURN_IF_ERROR(CheckReplaceable(out_path));
  LOCKSTEP_ASSIGN_OR_RETURN(const SafetensorsFile weights, Read(weights_path));
  LOCKSTEP_ASSIGN_OR_RETURN(const SafetensorsFile batch, Read(batch_path));
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors result,
                            ComputeGradients(options, weights, batch));
  return WriteSafetensors(out_path, result);
}

absl::Status Run(std::span<char* const> argv) {
  return CatchBadAlloc([&] { return ComputeAndWrite(argv.data()); });
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::GradientsUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::Run);
}
