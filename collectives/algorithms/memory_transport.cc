// A transport whose threads hand pieces to each other under one mutex.
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

constexpr std::align_val_t kPieceAlignment{64};

struct FreePieceBuffer {
  void operator()(std::byte* room) const {
    ::operator delete[](room, kPieceAlignment);
  }
};

// The pieces that one rank has sent to another, oldest first.
using Pieces = std::deque<Piece>;

// The state that all ranks share. Uses the standard library's mutex and
// condition variables, because the thread sanitizer supports them.
struct Network {
  Network(int world_size, const MemoryTransportOptions& options)
      : world_size(world_size),
        options(options),
        changed(static_cast<size_t>(world_size)),
        under_way(static_cast<size_t>(world_size * world_size)),
        has_left(static_cast<size_t>(world_size)) {}

  const int world_size;
  const MemoryTransportOptions options;
  std::mutex mutex;                              // Guards all fields below.
  std::vector<std::condition_variable> changed;  // By the waiting rank.
  std::vector<Pieces> under_way;
  std::vector<bool> has_left;
  absl::Status failure;
};

class MemoryTransport : public Transport {
 public:
  MemoryTransport(Network& network, int rank)
      : network_(network),
        rank_(rank),
        piece_buffers_(static_cast<size_t>(network.world_size)) {}

  int rank() const override { return rank_; }
  int world_size() const override { return network_.world_size; }
  int64_t max_piece_bytes() const override {
    return network_.options.max_piece_bytes;
  }
  int max_pieces() const override { return network_.options.max_pieces; }

  std::optional<std::span<std::byte>> PieceBuffer(int peer) override {
    const std::lock_guard<std::mutex> lock(network_.mutex);
    if (!HasFreeSlot(peer)) return std::nullopt;
    const size_t size = static_cast<size_t>(max_piece_bytes());
    auto& room = piece_buffers_[peer];
    if (room == nullptr) {
      room.reset(
          static_cast<std::byte*>(::operator new[](size, kPieceAlignment)));
    }
    return std::span(room.get(), size);
  }

  void Send(int peer, int64_t size) override {
    const auto room = std::exchange(piece_buffers_[peer], nullptr);
    std::vector<Piece> pieces = {Piece(room.get(), room.get() + size)};
    if (const auto& harm = network_.options.harm) {
      pieces = harm(rank_, peer, std::move(pieces[0]));
    }
    const std::lock_guard<std::mutex> lock(network_.mutex);
    for (Piece& piece : pieces) Way(rank_, peer).push_back(std::move(piece));
    network_.changed[peer].notify_one();
  }

  std::optional<std::span<const std::byte>> Received(int peer) override {
    const std::lock_guard<std::mutex> lock(network_.mutex);
    if (Way(peer, rank_).empty()) return std::nullopt;
    return Way(peer, rank_).front();
  }

  void Release(int peer) override {
    const std::lock_guard<std::mutex> lock(network_.mutex);
    Way(peer, rank_).pop_front();
    network_.changed[peer].notify_one();
  }

  absl::Status Wait(int send_peer, int receive_peer) override {
    std::unique_lock<std::mutex> lock(network_.mutex);
    const auto has_come = [&] {
      return (send_peer >= 0 && HasFreeSlot(send_peer)) ||
             (receive_peer >= 0 && !Way(receive_peer, rank_).empty());
    };
    const auto has_left = [&](int peer) {
      return peer < 0 || network_.has_left[peer];
    };
    const auto is_over = [&] {
      return has_come() || !network_.failure.ok() ||
             (has_left(send_peer) && has_left(receive_peer));
    };
    const bool in_time = network_.changed[rank_].wait_for(
        lock, absl::ToChronoMilliseconds(network_.options.timeout), is_over);
    if (has_come()) return absl::OkStatus();
    if (!network_.failure.ok()) return network_.failure;
    const int peer = receive_peer >= 0 ? receive_peer : send_peer;
    return in_time ? absl::UnavailableError(
                         absl::StrCat("rank ", peer, " left the group"))
                   : absl::DeadlineExceededError(absl::StrCat(
                         "rank ", rank_, " waited for rank ", peer));
  }

  void Leave(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(network_.mutex);
    network_.has_left[rank_] = true;
    for (std::condition_variable& changed : network_.changed) {
      changed.notify_one();
    }
    if (status.ok() || !network_.failure.ok()) return;
    network_.failure = absl::UnavailableError(
        absl::StrCat("rank ", rank_, " failed: ", status.message()));
  }

 private:
  // Callers of Way and HasFreeSlot hold the mutex.
  Pieces& Way(int from, int to) {
    return network_
        .under_way[static_cast<size_t>(from * network_.world_size + to)];
  }
  bool HasFreeSlot(int peer) {
    return static_cast<int>(Way(rank_, peer).size()) < max_pieces();
  }

  Network& network_;
  const int rank_;
  std::vector<std::unique_ptr<std::byte[], FreePieceBuffer>>
      piece_buffers_;  // By rank.
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
      statuses[rank] = fn(transport);
      transport.Leave(statuses[rank]);
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
