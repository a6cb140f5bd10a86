// Pieces that threads hand to each other under one mutex.
#include "collectives/algorithms/memory_transport.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/algorithms/transport.h"

namespace lockstep {
namespace {

constexpr std::align_val_t kRoomAlignment{64};

struct FreeRoom {
  void operator()(std::byte* room) const {
    ::operator delete[](room, kRoomAlignment);
  }
};

// What one rank has sent to another, oldest first.
using Pieces = std::deque<std::vector<std::byte>>;

// Of the standard library's making, which the thread sanitizer knows.
class Network {
 public:
  Network(int world_size, const MemoryTransportOptions& options)
      : world_size_(world_size),
        options_(options),
        changed_(static_cast<size_t>(world_size)),
        under_way_(static_cast<size_t>(world_size * world_size)),
        has_left_(static_cast<size_t>(world_size)) {}

  int world_size() const { return world_size_; }
  const MemoryTransportOptions& options() const { return options_; }

  bool HasRoom(int from, int to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return RoomLocked(from, to);
  }

  void Push(int from, int to, std::vector<std::byte> piece) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Way(from, to).push_back(std::move(piece));
    changed_[static_cast<size_t>(to)].notify_one();
  }

  std::optional<std::span<const std::byte>> Front(int from, int to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Way(from, to).empty()) return std::nullopt;
    return Way(from, to).front();
  }

  void Pop(int from, int to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Way(from, to).pop_front();
    changed_[static_cast<size_t>(from)].notify_one();
  }

  void Leave(int rank, const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_left_[static_cast<size_t>(rank)] = true;
    for (std::condition_variable& changed : changed_) changed.notify_one();
    if (status.ok() || !failure_.ok()) return;
    failure_ = absl::UnavailableError(
        absl::StrCat("rank ", rank, " failed: ", status.message()));
  }

  absl::Status Wait(int rank, int send_peer, int receive_peer) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto has_come = [&] {
      return (send_peer >= 0 && RoomLocked(rank, send_peer)) ||
             (receive_peer >= 0 && !Way(receive_peer, rank).empty());
    };
    const auto is_over = [&] {
      return has_come() || !failure_.ok() ||
             (LeftLocked(send_peer) && LeftLocked(receive_peer));
    };
    const bool in_time = changed_[static_cast<size_t>(rank)].wait_for(
        lock, absl::ToChronoMilliseconds(options_.timeout), is_over);
    if (has_come()) return absl::OkStatus();
    if (!failure_.ok()) return failure_;
    const int peer = receive_peer >= 0 ? receive_peer : send_peer;
    return in_time ? absl::UnavailableError(
                         absl::StrCat("rank ", peer, " left the group"))
                   : absl::DeadlineExceededError(absl::StrCat(
                         "rank ", rank, " waited for rank ", peer));
  }

 private:
  Pieces& Way(int from, int to) {
    return under_way_[static_cast<size_t>(from * world_size_ + to)];
  }
  bool RoomLocked(int from, int to) {
    return static_cast<int>(Way(from, to).size()) < options_.max_pieces;
  }
  // Also of kNobody.
  bool LeftLocked(int peer) const {
    return peer < 0 || has_left_[static_cast<size_t>(peer)];
  }

  const int world_size_;
  const MemoryTransportOptions options_;
  std::mutex mutex_;                              // Guards the following.
  std::vector<std::condition_variable> changed_;  // By the rank that waits.
  std::vector<Pieces> under_way_;
  std::vector<bool> has_left_;
  absl::Status failure_;
};

class MemoryTransport : public Transport {
 public:
  MemoryTransport(Network& network, int rank)
      : network_(network),
        rank_(rank),
        rooms_(static_cast<size_t>(network.world_size())) {}

  int rank() const override { return rank_; }
  int world_size() const override { return network_.world_size(); }
  int64_t max_piece_bytes() const override {
    return network_.options().max_piece_bytes;
  }
  int max_pieces() const override { return network_.options().max_pieces; }

  std::optional<std::span<std::byte>> Room(int peer) override {
    if (!network_.HasRoom(rank_, peer)) return std::nullopt;
    const size_t size = static_cast<size_t>(max_piece_bytes());
    auto& room = rooms_[static_cast<size_t>(peer)];
    if (room == nullptr) {
      room.reset(
          static_cast<std::byte*>(::operator new[](size, kRoomAlignment)));
    }
    return std::span(room.get(), size);
  }

  void Send(int peer, int64_t size) override {
    const auto room = std::exchange(rooms_[static_cast<size_t>(peer)], nullptr);
    network_.Push(rank_, peer,
                  std::vector<std::byte>(room.get(), room.get() + size));
  }

  std::optional<std::span<const std::byte>> Received(int peer) override {
    return network_.Front(peer, rank_);
  }
  void Release(int peer) override { network_.Pop(peer, rank_); }

  absl::Status Wait(int send_peer, int receive_peer) override {
    return network_.Wait(rank_, send_peer, receive_peer);
  }

 private:
  Network& network_;
  const int rank_;
  std::vector<std::unique_ptr<std::byte[], FreeRoom>> rooms_;  // By peer.
};

}  // namespace

std::vector<absl::Status> RunOverMemory(
    int world_size, const MemoryTransportOptions& options,
    const std::function<absl::Status(Transport&)>& fn) {
  Network network(world_size, options);
  std::vector<absl::Status> statuses(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryTransport transport(network, rank);
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      status = fn(transport);
      network.Leave(rank, status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status FirstCause(std::span<const absl::Status> statuses) {
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace lockstep
