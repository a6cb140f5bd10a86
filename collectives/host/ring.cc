#include "collectives/host/ring.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/host/add_into.h"
#include "collectives/host/ring_schedule.h"
#include "collectives/host/transport.h"

namespace lockstep {
namespace {

// A stretch of the data, in bytes.
struct Stretch {
  int64_t begin;
  int64_t size;
  bool add;  // What comes is added to what is there, and else replaces it.
};

// Walks over stretches in pieces of at most `piece_bytes`. Sender and receiver
// walk over the same stretch in the same pieces.
class Pieces {
 public:
  Pieces(std::vector<Stretch> stretches, int64_t piece_bytes)
      : stretches_(std::move(stretches)), piece_bytes_(piece_bytes) {
    SkipEmpty();
  }

  bool done() const { return index_ == stretches_.size(); }
  int64_t count() const { return count_; }  // Pieces passed so far.

  Stretch current() const {
    const Stretch& stretch = stretches_[index_];
    return {stretch.begin + offset_,
            std::min(piece_bytes_, stretch.size - offset_), stretch.add};
  }

  void Advance() {
    offset_ += current().size;
    ++count_;
    SkipEmpty();
  }

 private:
  void SkipEmpty() {
    while (!done() && offset_ == stretches_[index_].size) {
      offset_ = 0;
      ++index_;
    }
  }

  std::vector<Stretch> stretches_;
  int64_t piece_bytes_;
  size_t index_ = 0;
  int64_t offset_ = 0;
  int64_t count_ = 0;
};

int64_t PieceCount(int64_t size, int64_t piece_bytes) {
  return (size + piece_bytes - 1) / piece_bytes;
}

// What one rank does in a ring: first it sends `own` (possibly nothing), then
// it passes on what it receives, piece by piece and in order, but for the last
// `kept` stretches.
struct Circulation {
  std::span<std::byte> data;
  DataType type = DataType::kInt64;  // Of the elements that are added.
  Stretch own = {0, 0, false};
  std::vector<Stretch> received;
  size_t kept = 0;
};

class Circulator {
 public:
  Circulator(Transport& transport, const Circulation& plan)
      : transport_(transport),
        next_(RankModulo(transport.rank() + 1, transport.world_size())),
        previous_(RankModulo(transport.rank() - 1, transport.world_size())),
        data_(plan.data),
        type_(plan.type),
        own_pieces_(PieceCount(plan.own.size, transport.max_piece_bytes())),
        sends_(Sent(plan), transport.max_piece_bytes()),
        receives_(plan.received, transport.max_piece_bytes()) {}

  // Turns to receiving and to sending by turns, so that no rank holds up the
  // one before it while it waits for the one after it: no deadlock, whatever
  // the sizes.
  absl::Status Run() {
    while (!sends_.done() || !receives_.done()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool received, TryReceive());
      const bool sent = TrySend();
      if (received || sent) continue;
      LOCKSTEP_RETURN_IF_ERROR(
          transport_.Wait(MaySend() ? next_ : Transport::kNobody,
                          receives_.done() ? Transport::kNobody : previous_));
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<Stretch> Sent(const Circulation& plan) {
    std::vector<Stretch> sent = {plan.own};
    sent.insert(sent.end(), plan.received.begin(),
                plan.received.end() - static_cast<ptrdiff_t>(plan.kept));
    return sent;
  }

  // After its own pieces a rank can send as many as it has received.
  bool MaySend() const {
    return !sends_.done() && sends_.count() < own_pieces_ + receives_.count();
  }

  bool TrySend() {
    if (!MaySend()) return false;
    const std::optional<std::span<std::byte>> room = transport_.Room(next_);
    if (!room.has_value()) return false;
    const Stretch piece = sends_.current();
    std::memcpy(room->data(), data_.data() + piece.begin,
                static_cast<size_t>(piece.size));
    transport_.Send(next_, piece.size);
    sends_.Advance();
    return true;
  }

  absl::StatusOr<bool> TryReceive() {
    if (receives_.done()) return false;
    const std::optional<std::span<const std::byte>> piece =
        transport_.Received(previous_);
    if (!piece.has_value()) return false;
    const Stretch want = receives_.current();
    if (static_cast<int64_t>(piece->size()) != want.size) {
      return absl::InternalError(absl::StrCat(
          "rank ", transport_.rank(), " received ", piece->size(),
          " bytes from rank ", previous_, " where it expected ", want.size));
    }
    const std::span<std::byte> place = data_.subspan(
        static_cast<size_t>(want.begin), static_cast<size_t>(want.size));
    if (want.add) {
      AddInto(type_, place, *piece);
    } else {
      std::memcpy(place.data(), piece->data(), place.size());
    }
    transport_.Release(previous_);
    receives_.Advance();
    return true;
  }

  Transport& transport_;
  const int next_;
  const int previous_;
  const std::span<std::byte> data_;
  const DataType type_;
  const int64_t own_pieces_;
  Pieces sends_;
  Pieces receives_;
};

}  // namespace

absl::Status RingAllReduceSum(Transport& transport, Buffer data) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const int64_t element = SizeOf(data.type);
  const auto stretch = [&](int segment, bool add) {
    const Segment s = SegmentOf(data.count, world_size, segment);
    return Stretch{s.begin * element, s.count * element, add};
  };
  Circulation plan;
  plan.data = {static_cast<std::byte*>(data.data),
               static_cast<size_t>(data.size_bytes())};
  plan.type = data.type;
  if (world_size == 1) return absl::OkStatus();
  plan.own = stretch(SentSegment(rank, world_size, 0), false);
  const int steps = AllReduceSteps(world_size);
  for (int step = 0; step < steps; ++step) {
    plan.received.push_back(stretch(ReceivedSegment(rank, world_size, step),
                                    /*add=*/step < steps / 2));
  }
  plan.kept = 1;
  return Circulator(transport, plan).Run();
}

absl::Status RingBroadcast(Transport& transport, std::span<std::byte> data,
                           int root) {
  const int world_size = transport.world_size();
  const int distance = RankModulo(transport.rank() - root, world_size);
  const Stretch all = {0, static_cast<int64_t>(data.size()), false};
  if (world_size == 1) return absl::OkStatus();
  Circulation plan;
  plan.data = data;
  if (distance == 0) {
    plan.own = all;
  } else {
    plan.received = {all};
    plan.kept = distance == world_size - 1 ? 1 : 0;
  }
  return Circulator(transport, plan).Run();
}

absl::Status RingAllGather(Transport& transport, std::span<std::byte> output) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const int64_t size = static_cast<int64_t>(output.size()) / world_size;
  if (world_size == 1) return absl::OkStatus();
  Circulation plan;
  plan.data = output;
  plan.own = {rank * size, size, false};
  for (int step = 0; step < world_size - 1; ++step) {
    const int from = ReceivedSegment(rank, world_size, step);
    plan.received.push_back({from * size, size, false});
  }
  plan.kept = 1;
  return Circulator(transport, plan).Run();
}

}  // namespace lockstep
