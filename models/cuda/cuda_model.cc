#include "models/cuda/cuda_model.h"

#include <cuda_runtime.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/device_group.h"
#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {
namespace {

class CudaModel : public Model {
 public:
  CudaModel(int device, Stream stream, std::unique_ptr<CudaReplica> replica)
      : device_(device),
        stream_(std::move(stream)),
        replica_(std::move(replica)),
        parameters_(CreateParameters(replica_->network())),
        buffers_(CreateBuffers(replica_->network())) {}

  // Copies the replica's first weights to the host.
  absl::Status TakeFirstWeights() {
    return replica_->Download(parameters_, buffers_);
  }

  Parameters& parameters() override { return parameters_; }
  Buffers& buffers() override { return buffers_; }
  const Shape& input_shape() const override {
    return replica_->network().input_shape();
  }
  int64_t classes() const override { return replica_->network().classes(); }
  bool announces_gradients_at_end() const override { return true; }

  int ConvertSyncBatchNorm(Communicator& group) override {
    group_.emplace(group, stream_.get());
    return replica_->ConvertSyncBatchNorm(*group_);
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const DeviceBatch on_device, Begin(batch));
    const absl::Status enqueued =
        replica_->Enqueue(on_device, gradient_scale, [](int) {});
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, TakeMetrics(enqueued));
    LOCKSTEP_RETURN_IF_ERROR(replica_->DownloadBuffers(buffers_));
    LOCKSTEP_RETURN_IF_ERROR(replica_->DownloadGradients(parameters_));
    for (int i = parameters_.count(); i-- > 0;) ready(i);
    return metrics;
  }

  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_ASSIGN_OR_RETURN(const DeviceBatch on_device, Begin(batch));
    return TakeMetrics(replica_->EnqueueEvaluation(on_device));
  }

 private:
  // Returns the metrics, or the error. Either way no sum is left for the next
  // batch.
  absl::StatusOr<Metrics> TakeMetrics(const absl::Status& enqueued) {
    absl::StatusOr<Metrics> metrics = replica_->TakeMetrics();
    if (!enqueued.ok()) return enqueued;
    return metrics;
  }

  // Copies the parameters, the buffers and the batch to the GPU; returns the
  // batch there.
  absl::StatusOr<DeviceBatch> Begin(const Batch& batch) {
    LOCKSTEP_RETURN_IF_ERROR(CheckBatch(*this, batch));
    // The calling thread may differ from the last call's.
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(device_), "cudaSetDevice"));
    LOCKSTEP_RETURN_IF_ERROR(replica_->Upload(parameters_, buffers_));
    return batch_.Enqueue(batch, /*learning_rate=*/0, stream_.get());
  }

  const int device_;
  const Stream stream_;
  BatchCopy batch_;
  std::optional<DeviceGroup> group_;
  const std::unique_ptr<CudaReplica> replica_;
  Parameters parameters_;
  Buffers buffers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateCudaModel(
    Network network, int device, const CudaReplicaOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
  LOCKSTEP_ASSIGN_OR_RETURN(Stream stream, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<CudaReplica> replica,
      CudaReplica::Create(std::move(network), stream.get(), options));
  auto model = std::make_unique<CudaModel>(device, std::move(stream),
                                           std::move(replica));
  LOCKSTEP_RETURN_IF_ERROR(model->TakeFirstWeights());
  return model;
}

}  // namespace lockstep
