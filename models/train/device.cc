#include "models/train/device.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/train/rank_steps.h"

namespace lockstep {
namespace {

std::optional<GpuSupport>& Support() {
  static auto& support = *new std::optional<GpuSupport>;
  return support;
}

// Starts the program with support for GPUs in place of this one. Returns why it
// could not.
absl::Status StartCudaProgram(char* const* argv) {
  const std::string program = OwnProgramPath() + "_cuda";
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError("this program was built without CUDA and cuDNN");
  }
  execv(program.c_str(), argv);
  return absl::NotFoundError(
      absl::StrCat("cannot start ", program, ": ", std::strerror(errno)));
}

}  // namespace

const char* Name(ComputeDevice device) {
  return device == ComputeDevice::kCuda ? "cuda" : "cpu";
}

bool RegisterGpuSupport(const GpuSupport& support) {
  Support() = support;
  return true;
}

absl::StatusOr<ComputeDevice> ChooseDevice(absl::string_view text,
                                           absl::string_view why_not,
                                           char* const* argv,
                                           std::string& note) {
  if (text == "cpu") return ComputeDevice::kCpu;
  if (text != "cuda" && text != "auto") {
    return FlagError("device", text, "must be cpu, cuda or auto");
  }
  absl::Status status;
  if (!why_not.empty()) {
    status = absl::UnimplementedError(absl::StrCat("a GPU ", why_not));
  } else if (Support().has_value()) {
    status = GpuCount().status();
  } else {
    status = StartCudaProgram(argv);
  }
  if (status.ok()) return ComputeDevice::kCuda;
  if (text == "cuda") return FlagError("device", text, status.message());
  note = absl::StrCat("--device=auto: the CPU computes: ", status.message());
  return ComputeDevice::kCpu;
}

absl::StatusOr<int> GpuCount() {
  if (!Support().has_value()) {
    return absl::FailedPreconditionError("this program computes on no GPU");
  }
  return Support()->count();
}

absl::StatusOr<GpuDescription> DescribeGpu(int local_rank) {
  LOCKSTEP_RETURN_IF_ERROR(GpuCount().status());
  return Support()->describe(local_rank);
}

absl::StatusOr<std::unique_ptr<Model>> CreateGpuModel(
    Network network, uint64_t seed, int local_rank,
    ConvolutionPrecision precision) {
  LOCKSTEP_RETURN_IF_ERROR(GpuCount().status());
  return Support()->create(std::move(network), seed, local_rank, precision);
}

absl::StatusOr<std::unique_ptr<RankSteps>> CreateGpuSteps(
    Communicator& group, int local_rank, const Network& network,
    const GpuStepsOptions& options, std::string& shared) {
  LOCKSTEP_RETURN_IF_ERROR(GpuCount().status());
  return Support()->create_steps(group, local_rank, network, options, shared);
}

}  // namespace lockstep
