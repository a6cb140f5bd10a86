#include "models/train/device.h"

#include <unistd.h>

#include <cassert>
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
#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {
namespace {

std::optional<GpuSupport>& Support() {
  static auto& support = *new std::optional<GpuSupport>;
  return support;
}

// Starts the program with support for GPUs in place of this one. Returns if
// there is none.
void StartCudaProgram(char* const* argv) {
  const std::string program = OwnProgramPath() + "_cuda";
  if (access(program.c_str(), X_OK) == 0) execv(program.c_str(), argv);
}

}  // namespace

bool RegisterGpuSupport(const GpuSupport& support) {
  Support() = support;
  return true;
}

absl::StatusOr<ComputeDevice> ChooseDevice(absl::string_view text,
                                           char* const* argv,
                                           std::string& note) {
  if (text == "cpu") return ComputeDevice::kCpu;
  if (text != "cuda" && text != "auto") {
    return FlagError("device", text, "must be cpu, cuda or auto");
  }
  if (!Support().has_value()) StartCudaProgram(argv);
  const absl::Status status =
      Support().has_value()
          ? Support()->check()
          : absl::NotFoundError(
                "this program was built without CUDA and cuDNN");
  if (status.ok()) return ComputeDevice::kCuda;
  if (text == "cuda") return FlagError("device", text, status.message());
  note = absl::StrCat("--device=auto: the CPU computes: ", status.message());
  return ComputeDevice::kCpu;
}

absl::StatusOr<std::unique_ptr<Model>> CreateGpuModel(Network network,
                                                      int rank) {
  assert(Support().has_value());
  return Support()->create(std::move(network), rank);
}

}  // namespace lockstep
