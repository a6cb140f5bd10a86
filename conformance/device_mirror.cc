#include "conformance/device_mirror.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/nccl/staged_communicator.h"
#include "conformance/rank_bytes.h"

namespace lockstep::conformance {
namespace {

constexpr std::align_val_t kAlignment{256};

absl::Status Copy(void* to, const void* from, int64_t size,
                  cudaMemcpyKind kind) {
  if (size == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpy(to, from, static_cast<size_t>(size), kind),
                    "cudaMemcpy");
}

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> DeviceMirror::Allocate(
    int64_t bytes, Communicator* group) {
  Area area;
  area.size = bytes;
  if (group == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(area.device, AllocateDeviceMemory(bytes));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer, group->Allocate(bytes));
    // The deleter keeps `buffer`, which owns the memory.
    area.device = {buffer.bytes().data(), [buffer](std::byte*) {}};
  }
  area.host = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(bytes), kAlignment));
  LOCKSTEP_RETURN_IF_ERROR(
      Copy(area.host, area.device.get(), bytes, cudaMemcpyDeviceToHost));
  areas_->push_back(area);
  return std::shared_ptr<std::byte>(
      area.host, [areas = areas_, at = std::prev(areas_->end())](std::byte* p) {
        areas->erase(at);
        ::operator delete(p, kAlignment);
      });
}

absl::Status DeviceMirror::Begin() {
  copies_.clear();
  status_ = absl::OkStatus();
  for (const Area& area : *areas_) {
    LOCKSTEP_RETURN_IF_ERROR(
        Copy(area.device.get(), area.host, area.size, cudaMemcpyHostToDevice));
  }
  return absl::OkStatus();
}

std::byte* DeviceMirror::DeviceCopyOf(const std::byte* data, int64_t size,
                                      bool is_read) {
  if (data == nullptr || size == 0) return const_cast<std::byte*>(data);
  for (std::list<Area>* const areas : {areas_.get(), &copies_}) {
    for (Area& area : *areas) {
      if (!area.Has(data)) continue;
      area.is_read = area.is_read && is_read;
      return area.device.get() + (data - area.host);
    }
  }
  absl::StatusOr<DeviceMemory> memory = AllocateDeviceMemory(size);
  status_.Update(memory.status());
  if (!memory.ok()) return nullptr;
  copies_.push_back(
      {const_cast<std::byte*>(data), size, *std::move(memory), is_read});
  status_.Update(
      Copy(copies_.back().device.get(), data, size, cudaMemcpyHostToDevice));
  return copies_.back().device.get();
}

Buffer DeviceMirror::DeviceCopy(const Buffer& buffer) {
  return {DeviceCopyOf(buffer.bytes(), buffer.size_bytes(), false),
          buffer.count, buffer.type};
}

ConstBuffer DeviceMirror::DeviceCopy(const ConstBuffer& buffer) {
  return {DeviceCopyOf(buffer.bytes(), buffer.size_bytes(), true), buffer.count,
          buffer.type};
}

absl::Status DeviceMirror::CopyBack(absl::Status status) {
  status.Update(status_);
  status.Update(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  for (const std::list<Area>* areas : {areas_.get(), &copies_}) {
    for (const Area& area : *areas) {
      if (!status.ok() || area.is_read) continue;
      status =
          Copy(area.host, area.device.get(), area.size, cudaMemcpyDeviceToHost);
    }
  }
  return status;
}

absl::Status DeviceMirror::End(absl::Status status) {
  status = CopyBack(std::move(status));
  copies_.clear();
  return status;
}

absl::Status MirroredCommunicator::Run(const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(mirror_->Begin());
  Collective on_device = call;
  on_device.input = mirror_->DeviceCopy(call.input);
  on_device.output = mirror_->DeviceCopy(call.output);
  absl::Status status = inner().Run(on_device);
  if (status.ok()) status = inner().Wait();
  return mirror_->End(std::move(status));
}

absl::StatusOr<GroupBuffer> MirroredCommunicator::Allocate(int64_t bytes,
                                                           CallSite) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> area,
                            mirror_->Allocate(bytes, &inner()));
  return GroupBuffer(area, {area.get(), static_cast<size_t>(bytes)});
}

absl::StatusOr<std::unique_ptr<Communicator>> MirroredCommunicator::Split(
    int color, int key, CallSite site) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                            inner().Split(color, key, site));
  if (part == nullptr) return part;
  std::unique_ptr<MirroredCommunicator> mirrored(
      new MirroredCommunicator(*part, mirror_));
  mirrored->owned_ = std::move(part);
  return mirrored;
}

namespace {

RankRunner NcclRanks(const NcclOptions& options,
                     absl::StatusOr<std::string> (*run)(NcclCommunicator&,
                                                        const RankFunction&)) {
  return [options, run](int world_size, const RankFunction& fn) {
    const bool shared =
        absl::EndsWith(NcclBackendName(world_size), "shared_gpu");
    return RunNcclRanksCollect(
        world_size, options,
        [&](NcclCommunicator& group) -> absl::StatusOr<std::string> {
          if (group.shared_gpu() != shared) {
            return absl::InternalError(shared ? "ranks do not share a GPU"
                                              : "ranks share a GPU");
          }
          LOCKSTEP_ASSIGN_OR_RETURN(std::string result, run(group, fn));
          if (options.group.algorithm == Algorithm::kDirect && world_size > 1) {
            LOCKSTEP_RETURN_IF_ERROR(CheckIsDirect(group));
          }
          return result;
        });
  };
}

}  // namespace

RankRunner MirroredNcclRanks(const NcclOptions& options) {
  return NcclRanks(options,
                   [](NcclCommunicator& group, const RankFunction& fn) {
                     MirroredCommunicator mirrored(group);
                     return fn(mirrored);
                   });
}

RankRunner StagedNcclRanks(const NcclOptions& options) {
  return NcclRanks(options,
                   [](NcclCommunicator& group,
                      const RankFunction& fn) -> absl::StatusOr<std::string> {
                     LOCKSTEP_ASSIGN_OR_RETURN(
                         std::unique_ptr<Communicator> own,
                         group.Split(/*color=*/0, /*key=*/0));
                     LOCKSTEP_ASSIGN_OR_RETURN(
                         const std::unique_ptr<StagedCommunicator> staged,
                         StagedCommunicator::Create(std::move(own)));
                     return fn(*staged);
                   });
}

}  // namespace lockstep::conformance
