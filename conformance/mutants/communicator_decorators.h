// Communicators that pass calls on, but for one kind that they do wrong.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buffer.h"
#include "collectives/call_site.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/group_buffer.h"

namespace lockstep {

// Passes every call on to `inner`, which it borrows.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  absl::Status Run(const Collective& call) override { return inner_.Run(call); }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return inner_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return inner_.Split(color, key, site);
  }

 protected:
  Communicator& inner() { return inner_; }

 private:
  Communicator& inner_;
};

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

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_COMMUNICATOR_DECORATORS_H_
