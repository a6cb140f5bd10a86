// Communicators that pass calls on, but for one kind that they do wrong.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"

namespace lockstep {

// Passes every call on to `inner`, which it borrows.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  absl::Status AllReduceSum(Buffer data) override {
    return inner_.AllReduceSum(data);
  }
  absl::Status Broadcast(std::span<std::byte> data, int root) override {
    return inner_.Broadcast(data, root);
  }
  absl::Status AllGather(std::span<const std::byte> input,
                         std::span<std::byte> output) override {
    return inner_.AllGather(input, output);
  }
  absl::Status Barrier() override { return inner_.Barrier(); }

 protected:
  Communicator& inner() { return inner_; }

 private:
  Communicator& inner_;
};

// Sums float32 data, that is gradients, by `sum` instead; metrics, which are
// float64 and int64, pass.
class AllReduceMutant : public ForwardingCommunicator {
 public:
  using Sum = std::function<absl::Status(Communicator&, std::span<float>)>;

  AllReduceMutant(Communicator& inner, Sum sum)
      : ForwardingCommunicator(inner), sum_(std::move(sum)) {}

  absl::Status AllReduceSum(Buffer data) override {
    if (data.type != DataType::kFloat32) return inner().AllReduceSum(data);
    return sum_(inner(), {static_cast<float*>(data.data),
                          static_cast<size_t>(data.count)});
  }

 private:
  Sum sum_;
};

// Broadcasts by `broadcast` instead.
class BroadcastMutant : public ForwardingCommunicator {
 public:
  using Send =
      std::function<absl::Status(Communicator&, std::span<std::byte>, int)>;

  BroadcastMutant(Communicator& inner, Send send)
      : ForwardingCommunicator(inner), send_(std::move(send)) {}

  absl::Status Broadcast(std::span<std::byte> data, int root) override {
    return send_(inner(), data, root);
  }

 private:
  Send send_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_
