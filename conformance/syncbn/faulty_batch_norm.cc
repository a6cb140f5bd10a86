// Puts a fault around the parts of a layer.
#include "conformance/syncbn/faulty_batch_norm.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/call_site.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/group_buffer.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_subject.h"
#include "conformance/syncbn/plain_kernels.h"
#include "conformance/syncbn/run_batch_norm.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/batch_norm_options.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

class FaultyKernels : public BatchNormKernels {
 public:
  FaultyKernels(const BatchNormFault& fault, int rank,
                std::unique_ptr<BatchNormKernels> real)
      : fault_(fault), rank_(rank), real_(std::move(real)) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return real_->Allocate(bytes);
  }

  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override {
    LOCKSTEP_RETURN_IF_ERROR(real_->ComputeMoments(shape, x, record));
    if (fault_.moments != nullptr) {
      fault_.moments(
          shape, x,
          RecordView({.channels = shape.c, .type = StatisticsTypeOf(x.type)},
                     record));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override {
    if (fault_.merges == nullptr) {
      return real_->Merge(record, gathered, ranks, options, running, saved);
    }
    return fault_.merges(*real_, {record, gathered, ranks, options, running,
                                  saved, ranks == 1 ? 0 : rank_});
  }

  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override {
    return real_->UseRunning(record, running, epsilon, saved);
  }

  absl::Status Normalize(const NormalizeCall& call) override {
    // As it was, in case y is written there.
    const std::string residual(
        reinterpret_cast<const char*>(call.residual.bytes()),
        static_cast<size_t>(call.residual.size_bytes()));
    const std::string y(reinterpret_cast<const char*>(call.y.bytes()),
                        static_cast<size_t>(call.y.size_bytes()));
    LOCKSTEP_RETURN_IF_ERROR(real_->Normalize(call));
    if (fault_.normalized == nullptr) return absl::OkStatus();
    NormalizeCall before = call;
    if (!residual.empty()) before.residual.data = residual.data();
    fault_.normalized(before, ConstBuffer(y.data(), call.y.count, call.y.type));
    return absl::OkStatus();
  }

  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override {
    BackwardCall told = call;
    if (fault_.told_reduce != nullptr) fault_.told_reduce(told);
    LOCKSTEP_RETURN_IF_ERROR(real_->BackwardReduce(told, sums, dweight, dbias));
    if (fault_.reduced != nullptr) fault_.reduced(rank_, dweight, dbias);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override {
    std::string copy(reinterpret_cast<const char*>(sums.bytes()),
                     static_cast<size_t>(sums.size_bytes()));
    const Buffer told_sums(copy.data(), sums.count, sums.type);
    const std::string dy(reinterpret_cast<const char*>(call.dy.bytes()),
                         static_cast<size_t>(call.dy.size_bytes()));
    BackwardCall told = call;
    if (fault_.told_input != nullptr) fault_.told_input(told, told_sums);
    LOCKSTEP_RETURN_IF_ERROR(
        real_->BackwardInput(told, told_sums, dx, dresidual));
    if (fault_.input_gradient != nullptr) {
      fault_.input_gradient(call,
                            ConstBuffer(dy.data(), call.dy.count, call.dy.type),
                            dx, dresidual);
    }
    return absl::OkStatus();
  }

 private:
  const BatchNormFault& fault_;
  const int rank_;
  const std::unique_ptr<BatchNormKernels> real_;
};

class FaultyGroup : public Communicator {
 public:
  FaultyGroup(const BatchNormFault& fault, Communicator& real)
      : fault_(fault), real_(real) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  absl::Status Run(const Collective& call) override {
    return fault_.runs != nullptr ? fault_.runs(real_, call) : real_.Run(call);
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return real_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return real_.Split(color, key, site);
  }

 private:
  const BatchNormFault& fault_;
  Communicator& real_;
};

// Owns the parts, which refer to each other.
class FaultyLayer : public BatchNorm {
 public:
  static absl::StatusOr<std::unique_ptr<BatchNorm>> Create(
      const BatchNormFault& fault, const KernelsFactory& make_kernels,
      BatchNormOptions options, Communicator& group) {
    auto layer = std::unique_ptr<FaultyLayer>(
        new FaultyLayer(fault, make_kernels(), group));
    if (fault.told != nullptr) fault.told(options);
    LOCKSTEP_ASSIGN_OR_RETURN(
        layer->real_,
        SyncBatchNorm::Create(options, layer->kernels_, layer->group_));
    options.track_running_stats = false;
    LOCKSTEP_ASSIGN_OR_RETURN(
        layer->untracked_,
        SyncBatchNorm::Create(options, layer->kernels_, layer->group_));
    return std::unique_ptr<BatchNorm>(std::move(layer));
  }

  int64_t SavedBytes(DataType type) const override {
    return real_->SavedBytes(type);
  }
  absl::Status Forward(const Forwards& buffers) override {
    return fault_.forwards != nullptr
               ? fault_.forwards(*real_, *untracked_, buffers)
               : real_->Forward(buffers);
  }
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override {
    return fault_.backwards != nullptr
               ? fault_.backwards(*real_, group_, buffers, gradients_ready)
               : real_->Backward(buffers, gradients_ready);
  }

 private:
  FaultyLayer(const BatchNormFault& fault,
              std::unique_ptr<BatchNormKernels> kernels, Communicator& group)
      : fault_(fault),
        kernels_(fault_, group.rank(), std::move(kernels)),
        group_(fault_, group) {}

  const BatchNormFault fault_;
  FaultyKernels kernels_;
  FaultyGroup group_;
  std::unique_ptr<BatchNorm> real_;
  std::unique_ptr<BatchNorm> untracked_;
};

}  // namespace

LayerFactory MakeFaulty(const BatchNormFault& fault,
                        const KernelsFactory& make_kernels) {
  return [=](const BatchNormOptions& options, Communicator& group) {
    return FaultyLayer::Create(fault, make_kernels, options, group);
  };
}

int64_t ValuesOf(const BatchNormProblem& problem, int step) {
  int64_t values = 0;
  for (const int64_t n : BatchSizes(problem, step)) values += n * problem.hw;
  return values;
}

int RanksWithValues(const BatchNormProblem& problem, int step) {
  int ranks = 0;
  for (const int64_t n : BatchSizes(problem, step)) ranks += n > 0 ? 1 : 0;
  return ranks;
}

}  // namespace lockstep
