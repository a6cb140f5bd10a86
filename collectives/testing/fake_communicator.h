// A base for communicators that tests make up.
#ifndef LOCKSTEP_COLLECTIVES_TESTING_FAKE_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_TESTING_FAKE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

// Rank 0 of 1 unless overridden; what runs a call is the test's.
class FakeCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return absl::UnimplementedError("a fake allocates nothing");
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int,
                                                      CallSite) override {
    return absl::UnimplementedError("a fake does not split");
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_TESTING_FAKE_COMMUNICATOR_H_
