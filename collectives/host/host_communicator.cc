#include "collectives/host/host_communicator.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/host/call.h"
#include "collectives/host/group_member.h"
#include "collectives/host/ring.h"

namespace lockstep {
namespace {

// std::less orders pointers into different objects, which < need not.
bool Overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<GroupMember> member)
    : member_(std::move(member)), transport_(*member_) {}

// An error that the algorithm itself found makes the group fail as well.
absl::Status HostCommunicator::Finish(const absl::Status& status) {
  return status.ok() ? status : member_->Fail(status);
}

absl::Status HostCommunicator::AllReduceSum(Buffer data) {
  Call call;
  call.operation = Operation::kAllReduceSum;
  call.type = data.type;
  call.count = data.count;
  LOCKSTEP_RETURN_IF_ERROR(member_->Enter(call));
  return Finish(RingAllReduceSum(transport_, data));
}

absl::Status HostCommunicator::Broadcast(std::span<std::byte> data, int root) {
  Call call;
  call.operation = Operation::kBroadcast;
  call.count = static_cast<int64_t>(data.size());
  call.root = root;
  if (root < 0 || root >= world_size()) {
    return member_->Refuse(
        call, absl::StrCat("the root is outside [0, ", world_size(), ")"));
  }
  LOCKSTEP_RETURN_IF_ERROR(member_->Enter(call));
  return Finish(RingBroadcast(transport_, data, root));
}

absl::Status HostCommunicator::AllGather(std::span<const std::byte> input,
                                         std::span<std::byte> output) {
  Call call;
  call.operation = Operation::kAllGather;
  call.count = static_cast<int64_t>(input.size());
  if (output.size() != input.size() * static_cast<size_t>(world_size())) {
    return member_->Refuse(
        call,
        absl::StrCat("its output has ", output.size(), " bytes in place of ",
                     world_size(), " * ", input.size()));
  }
  const std::span<std::byte> place =
      output.subspan(static_cast<size_t>(rank()) * input.size(), input.size());
  if (Overlap(input, output) && input.data() != place.data()) {
    return member_->Refuse(call,
                           "its input lies in the place of another rank "
                           "in its output");
  }
  LOCKSTEP_RETURN_IF_ERROR(member_->Enter(call));
  if (!input.empty() && input.data() != place.data()) {
    std::memcpy(place.data(), input.data(), input.size());
  }
  return Finish(RingAllGather(transport_, output));
}

absl::Status HostCommunicator::Barrier() { return member_->Enter(Call()); }

}  // namespace lockstep
