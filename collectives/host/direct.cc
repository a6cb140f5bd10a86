#include "collectives/host/direct.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

// The smallest piece that is streamed. A smaller piece reaches the other cache
// sooner than it would reach memory.
constexpr int64_t kStreamedPieceBytes = 4 << 10;

// Returns whether `data` lies within `part`. Uses std::less_equal, which orders
// pointers into different objects; operator<= need not.
bool Within(const std::byte* data, int64_t size, const std::byte* part,
            int64_t part_size) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(part, data) && not_after(data + size, part + part_size);
}

static_assert(kTreeOrderBytes <= kStagedBytes,
              "What is reduced in tree order is staged");

// Returns whether other ranks read this rank's input.
bool GivesInput(const Collective& call, int rank) {
  if (call.operation == Operation::kBroadcast ||
      call.operation == Operation::kScatter) {
    return rank == call.peer;
  }
  return true;
}

// Returns whether other ranks write to this rank's output, unless inputs are
// staged.
bool TakesOutput(const Collective& call, int rank) {
  return call.operation == Operation::kAllReduce ||
         (call.operation == Operation::kReduce && rank == call.peer);
}

// One call, with every rank's buffers in this rank's addresses; null if a rank
// has no buffer.
class DirectCall {
 public:
  DirectCall(const Collective& call, GroupMember& member,
             const GroupMemory& memory)
      : call_(call), rank_(member.rank()), world_size_(member.world_size()) {
    for (int peer = 0; peer < world_size_; ++peer) {
      const BufferLocation input = member.input_of(peer);
      const BufferLocation output = member.output_of(peer);
      const bool staged = input.kind == BufferLocation::kStaged ||
                          input.kind == BufferLocation::kInline;
      any_staged_ |= staged;
      needs_meeting_ |= !staged && input.kind != BufferLocation::kNothing;
      inputs_[peer] =
          input.kind == BufferLocation::kNothing  ? nullptr
          : input.kind == BufferLocation::kStaged ? member.Staged(peer).data()
          : input.kind == BufferLocation::kInline ? member.Here(peer)
                                                  : memory.Resolve(peer, input);
      outputs_[peer] = output.kind == BufferLocation::kNothing
                           ? nullptr
                           : memory.Resolve(peer, output);
    }
  }

  // Returns whether a rank may still read another's buffers when this one is
  // done.
  bool needs_meeting() const { return needs_meeting_; }

  void Run() {
    switch (call_.operation) {
      case Operation::kAllReduce:
        return any_staged_ ? ReduceAll() : ReduceSegment();
      case Operation::kReduce:
        if (!any_staged_) return ReduceSegment();
        if (rank_ == call_.peer) ReduceAll();
        return;
      case Operation::kReduceScatter:
        return ReducePart();
      case Operation::kAllGather:
        return Gather();
      case Operation::kGather:
        if (rank_ == call_.peer) Gather();
        return;
      case Operation::kBroadcast:
        return Copy(call_.output.bytes(), inputs_[call_.peer],
                    call_.output.size_bytes());
      case Operation::kScatter:
        return Copy(call_.output.bytes(),
                    At(inputs_[call_.peer], rank_ * call_.output.size_bytes()),
                    call_.output.size_bytes());
      case Operation::kAllToAll:
        return Exchange();
      case Operation::kSend:
      case Operation::kReceive:
      case Operation::kBarrier:
      case Operation::kAllocate:
      case Operation::kSplit:
      case Operation::kReplay:
        return;
    }
  }

 private:
  static void Copy(std::byte* to, const std::byte* from, int64_t size) {
    if (size > 0 && to != from) std::memcpy(to, from, size);
  }

  static const std::byte* At(const std::byte* base, int64_t offset) {
    return base == nullptr ? nullptr : base + offset;
  }

  Reduction MakeReduction() const {
    return Reduction(call_.input.type, call_.op, world_size_);
  }

  // Returns every rank's input at `offset`, beginning with rank `first`'s.
  std::span<const void* const> InputsFrom(int first, int64_t offset) {
    for (int i = 0; i < world_size_; ++i) {
      const int peer =
          first + i < world_size_ ? first + i : first + i - world_size_;
      operands_[i] = inputs_[peer] + offset;
    }
    return std::span(operands_).first(static_cast<size_t>(world_size_));
  }

  // Reduces all elements from staged inputs, for this rank alone.
  void ReduceAll() {
    if (call_.input.count == 0) return;
    void* const output[] = {call_.output.data};
    MakeReduction().FoldTree(InputsFrom(0, 0), output, call_.input.count);
  }

  // Reduces one segment, for all ranks that need it.
  void ReduceSegment() {
    const Segment segment = SegmentOf(call_.input.count, world_size_, rank_);
    if (segment.count == 0) return;
    const int64_t offset = segment.begin * SizeOf(call_.input.type);
    void* outputs[kMaxWorldSize];
    size_t count = 0;
    for (int peer = 0; peer < world_size_; ++peer) {
      if (outputs_[peer] != nullptr) outputs[count++] = outputs_[peer] + offset;
    }
    const auto to = std::span(outputs).first(count);
    if (call_.uniform) {
      MakeReduction().FoldTree(InputsFrom(0, offset), to, segment.count);
    } else {
      MakeReduction().Fold(InputsFrom(rank_, offset), to, segment.count);
    }
  }

  // Reduces this rank's part of a ReduceScatter.
  void ReducePart() {
    if (call_.output.count == 0) return;
    void* const output[] = {call_.output.data};
    MakeReduction().Fold(InputsFrom((rank_ + 1) % world_size_,
                                    rank_ * call_.output.size_bytes()),
                         output, call_.output.count);
  }

  void Gather() {
    const int64_t element = SizeOf(call_.output.type);
    std::byte* to = call_.output.bytes();
    for (int peer = 0; peer < world_size_; ++peer) {
      const int64_t size =
          (call_.counts.empty() ? call_.input.count : call_.counts[peer]) *
          element;
      Copy(to, inputs_[peer], size);
      to += size;
    }
  }

  void Exchange() {
    const int64_t part = call_.output.size_bytes() / world_size_;
    for (int i = 0; i < world_size_; ++i) {
      const int peer = (rank_ + i) % world_size_;
      Copy(call_.output.bytes() + peer * part, At(inputs_[peer], rank_ * part),
           part);
    }
  }

  const Collective& call_;
  const int rank_;
  const int world_size_;
  // By rank. Arrays, because an allocation is too slow for small calls.
  std::array<const std::byte*, kMaxWorldSize> inputs_;
  std::array<std::byte*, kMaxWorldSize> outputs_;
  std::array<const void*, kMaxWorldSize> operands_;
  bool any_staged_ = false;
  bool needs_meeting_ = false;
};

}  // namespace

int64_t SharedTransport::max_piece_bytes() const {
  return member_.region().shape().slot_bytes;
}

int SharedTransport::max_pieces() const { return kSlotsPerMailbox; }

bool SharedTransport::HasFreeSlot(int peer) const {
  const Mailbox& mailbox = member_.region().mailbox(rank(), peer);
  return mailbox.sent.load(std::memory_order_relaxed) -
             mailbox.freed.load(std::memory_order_seq_cst) <
         kSlotsPerMailbox;
}

std::optional<std::span<std::byte>> SharedTransport::PieceBuffer(int peer) {
  if (!HasFreeSlot(peer)) return std::nullopt;
  if (piece_.empty()) {
    const auto size = static_cast<size_t>(max_piece_bytes());
    size_t space = size + kCacheLineBytes;
    piece_memory_ = std::make_unique_for_overwrite<std::byte[]>(space);
    void* aligned = piece_memory_.get();
    std::align(kCacheLineBytes, size, aligned, space);
    piece_ = {static_cast<std::byte*>(aligned), size};
  }
  return piece_;
}

void SharedTransport::Send(int peer, int64_t size) {
  const SharedRegion& region = member_.region();
  Mailbox& mailbox = region.mailbox(rank(), peer);
  const uint64_t sent = mailbox.sent.load(std::memory_order_relaxed);
  std::byte* const slot = region.slot(rank(), peer, sent).data();
  if (size < kStreamedPieceBytes) {
    std::memcpy(slot, piece_.data(), static_cast<size_t>(size));
  } else {
    StreamCopy(piece_.data(), slot, size);
    FinishStreaming();
  }
  mailbox.sizes[sent % kSlotsPerMailbox] = size;
  mailbox.sent.store(sent + 1, std::memory_order_seq_cst);
  member_.Notify(peer);
}

std::optional<std::span<const std::byte>> SharedTransport::Received(int peer) {
  const SharedRegion& region = member_.region();
  const Mailbox& mailbox = region.mailbox(peer, rank());
  const uint64_t freed = mailbox.freed.load(std::memory_order_relaxed);
  if (mailbox.sent.load(std::memory_order_seq_cst) == freed) {
    return std::nullopt;
  }
  const int64_t size = mailbox.sizes[freed % kSlotsPerMailbox];
  return region.slot(peer, rank(), freed).first(static_cast<size_t>(size));
}

void SharedTransport::Release(int peer) {
  Mailbox& mailbox = member_.region().mailbox(peer, rank());
  const uint64_t freed = mailbox.freed.load(std::memory_order_relaxed);
  mailbox.freed.store(freed + 1, std::memory_order_seq_cst);
  member_.Notify(peer);
}

absl::Status SharedTransport::Wait(int send_peer, int receive_peer) {
  uint64_t peers = 0;
  if (send_peer != kNoRank) peers |= uint64_t{1} << send_peer;
  if (receive_peer != kNoRank) peers |= uint64_t{1} << receive_peer;
  return member_.WaitFor(peers, [&] {
    return (send_peer != kNoRank && HasFreeSlot(send_peer)) ||
           (receive_peer != kNoRank && Received(receive_peer).has_value());
  });
}

int64_t GroupMemory::Stride(int64_t bytes) {
  const int64_t page = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  return RoundUp(bytes, page);
}

GroupBuffer GroupMemory::Add(std::shared_ptr<SharedMemory> memory,
                             int64_t bytes) {
  const int64_t stride = Stride(bytes);
  const int64_t begin = rank_ * stride;
  allocations_.push_back(
      {memory, stride, std::vector<bool>(stride / kHugePageBytes)});
  std::byte* part = memory->data() + begin;
  std::shared_ptr<void> owner(
      part, [memory, begin, stride](void*) { memory->Discard(begin, stride); });
  return GroupBuffer(std::move(owner), {part, static_cast<size_t>(bytes)});
}

void GroupMemory::UseHugePagesOf(Allocation& allocation, int64_t offset,
                                 int64_t size) {
  std::vector<bool>& done = allocation.huge_pages;
  const auto pages = static_cast<int64_t>(done.size());
  int64_t begin = offset / kHugePageBytes;
  const int64_t end =
      std::min(RoundUp(offset + size, kHugePageBytes) / kHugePageBytes, pages);
  while (begin < end && done[begin]) ++begin;
  if (begin >= end) return;
  std::fill(done.begin() + begin, done.begin() + end, true);
  std::byte* const part = allocation.memory->data() + rank_ * allocation.stride;
  UseHugePages({part + begin * kHugePageBytes,
                static_cast<size_t>((end - begin) * kHugePageBytes)});
}

BufferLocation GroupMemory::LocationOf(const void* data, int64_t size) {
  if (size == 0) return {BufferLocation::kNothing, 0, 0};
  if (address_space_) {
    return {BufferLocation::kAddressSpace, 0,
            reinterpret_cast<uintptr_t>(data)};
  }
  const std::byte* bytes = static_cast<const std::byte*>(data);
  for (size_t i = 0; i < allocations_.size(); ++i) {
    Allocation& allocation = allocations_[i];
    const std::byte* part =
        allocation.memory->data() + rank_ * allocation.stride;
    if (Within(bytes, size, part, allocation.stride)) {
      UseHugePagesOf(allocation, bytes - part, size);
      return {BufferLocation::kAllocation, static_cast<int32_t>(i),
              static_cast<uint64_t>(bytes - part)};
    }
  }
  return {};
}

std::byte* GroupMemory::Resolve(int peer, const BufferLocation& place) const {
  if (place.kind == BufferLocation::kAddressSpace) {
    return reinterpret_cast<std::byte*>(place.offset);
  }
  const Allocation& allocation = allocations_[place.number];
  return allocation.memory->data() + peer * allocation.stride + place.offset;
}

BufferLocations LocationsOf(const Collective& call, GroupMember& member,
                            GroupMemory& memory) {
  const BufferLocation nothing = {BufferLocation::kNothing, 0, 0};
  const ConstBuffer& input = call.input;
  const bool gives = GivesInput(call, member.rank()) && input.count > 0;
  if (gives && input.size_bytes() <= kInlineBytes) {
    return {{BufferLocation::kInline, 0, 0},
            nothing,
            {input.bytes(), static_cast<size_t>(input.size_bytes())}};
  }
  if (gives && input.size_bytes() <= kStagedBytes) {
    std::memcpy(member.StagedForNext().data(), input.data,
                static_cast<size_t>(input.size_bytes()));
    return {{BufferLocation::kStaged, 0, 0}, nothing};
  }
  BufferLocations places = {nothing, nothing};
  if (gives) places.input = memory.LocationOf(input.data, input.size_bytes());
  if (TakesOutput(call, member.rank())) {
    places.output =
        memory.LocationOf(call.output.data, call.output.size_bytes());
  }
  return places;
}

int CountReachable(const GroupMember& member) {
  int reachable = 0;
  for (int peer = 0; peer < member.world_size(); ++peer) {
    const BufferLocations places = {member.input_of(peer),
                                    member.output_of(peer)};
    if (places.reachable()) ++reachable;
  }
  return reachable;
}

absl::Status RunDirect(const Collective& call, GroupMember& member,
                       const GroupMemory& memory) {
  DirectCall direct(call, member, memory);
  if (!direct.needs_meeting()) {
    // The next call of a program often has the same size.
    if (member.input_of(member.rank()).kind == BufferLocation::kStaged) {
      member.ExpectToStage(call.input.size_bytes());
    }
    direct.Run();
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(member.BeginInMemory());
  direct.Run();
  member.EndInMemory();
  return member.Complete();
}

}  // namespace lockstep
