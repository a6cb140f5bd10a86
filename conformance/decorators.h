// Communicators, models and samplers that pass calls on, but for one kind that
// they do wrong: what mutants are planted with.
#ifndef LOCKSTEP_CONFORMANCE_DECORATORS_H_
#define LOCKSTEP_CONFORMANCE_DECORATORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "sampler/sampler.h"

namespace lockstep {

// Sums float32 data in place, that is gradients, by `sum` instead; metrics,
// which are float64 and int64, pass.
class AllReduceMutant : public ForwardingCommunicator {
 public:
  using Sum = std::function<absl::Status(Communicator&, std::span<float>)>;

  AllReduceMutant(Communicator& inner, Sum sum)
      : ForwardingCommunicator(inner), sum_(std::move(sum)) {}

  absl::Status Run(const Collective& call) override {
    if (call.operation != Operation::kAllReduce ||
        call.output.type != DataType::kFloat32) {
      return inner().Run(call);
    }
    return sum_(inner(), {static_cast<float*>(call.output.data),
                          static_cast<size_t>(call.output.count)});
  }

 private:
  Sum sum_;
};

// Broadcasts by `broadcast` instead.
class BroadcastMutant : public ForwardingCommunicator {
 public:
  using Send = std::function<absl::Status(Communicator&, Buffer, int root)>;

  BroadcastMutant(Communicator& inner, Send send)
      : ForwardingCommunicator(inner), send_(std::move(send)) {}

  absl::Status Run(const Collective& call) override {
    if (call.operation != Operation::kBroadcast) return inner().Run(call);
    return send_(inner(), call.output, call.peer);
  }

 private:
  Send send_;
};

// Trains `inner`, which it borrows, by `step` instead.
class ModelMutant : public Model {
 public:
  using Step = std::function<absl::StatusOr<Metrics>(
      Model&, const Batch&, float gradient_scale, GradientReady)>;

  ModelMutant(Model& inner, Step step)
      : inner_(inner), step_(std::move(step)) {}

  Parameters& parameters() override { return inner_.parameters(); }
  Buffers& buffers() override { return inner_.buffers(); }
  int ConvertSyncBatchNorm(Communicator& group) override {
    return inner_.ConvertSyncBatchNorm(group);
  }
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    return step_(inner_, batch, gradient_scale, ready);
  }
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    return inner_.Evaluate(batch);
  }

 private:
  Model& inner_;
  Step step_;
};

// Draws by `draw` from the sampler that it owns and the epoch that was set.
class SamplerMutant : public Sampler {
 public:
  using Draw = std::function<absl::StatusOr<std::vector<int64_t>>(
      Sampler&, int64_t epoch)>;

  SamplerMutant(std::unique_ptr<Sampler> inner, Draw draw)
      : inner_(std::move(inner)), draw_(std::move(draw)) {}

  void SetEpoch(int64_t epoch) override { epoch_ = epoch; }
  absl::StatusOr<std::vector<int64_t>> Indices() override {
    return draw_(*inner_, epoch_);
  }

 private:
  std::unique_ptr<Sampler> inner_;
  Draw draw_;
  int64_t epoch_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_DECORATORS_H_
