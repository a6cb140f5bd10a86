// The memory that the ranks of a host group share, and what lies in it.
#ifndef LOCKSTEP_COLLECTIVES_HOST_SHARED_REGION_H_
#define LOCKSTEP_COLLECTIVES_HOST_SHARED_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/files.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {

inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kHugePageBytes = 2 << 20;

constexpr int64_t RoundUp(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Owns one mapping, zero at first, aligned to a page, or to a huge page where
// it is as large. Only address space is reserved: pages come when touched, and
// go with the last mapping. Errors of all factories: kResourceExhausted without
// memory, or beyond the process's file size limit.
class SharedMemory {
 public:
  // For ranks that are threads: nobody else can open it.
  static absl::StatusOr<SharedMemory> CreatePrivate(int64_t size);

  // For processes: the others open `path()` while this process holds it.
  static absl::StatusOr<SharedMemory> Create(int64_t size);

  // Maps what Create made, whole. Errors: kUnavailable if it is gone.
  static absl::StatusOr<SharedMemory> Open(const std::string& path);

  std::byte* data() const { return base_.get(); }
  int64_t size() const { return base_.get_deleter().size; }

  // "/proc/<pid>/fd/<n>", or empty after CloseFile or without a file.
  std::string path() const;
  // After this nobody else can open it.
  void CloseFile() { file_.Close(); }

  // Gives the pages of [offset, offset + size), page boundaries, back to the
  // system, for every process; they read as zero after that.
  void Discard(int64_t offset, int64_t size);

 private:
  struct Unmap {
    void operator()(std::byte* base) const;
    int64_t size;
  };

  SharedMemory(void* base, int64_t size, OwnedFd file)
      : base_(static_cast<std::byte*>(base), Unmap{size}),
        file_(std::move(file)) {}
  static absl::StatusOr<SharedMemory> Map(OwnedFd file, int64_t size);

  std::unique_ptr<std::byte, Unmap> base_;
  OwnedFd file_;
};

// Has the system map these pages now, where it can, so that no call waits for
// it page by page.
void TouchPages(std::span<std::byte> memory);

// Has the system take huge pages for what is first touched in `memory`, which
// begins at a page, where it can.
void ExpectHugePages(std::span<std::byte> memory);

// Has the system put the whole huge pages that lie in `memory` into huge pages,
// where it can (Linux 6.1), for every process that maps it. Else each process
// looks up 512 times as many pages, which takes as long as to reduce what is in
// them where neither is in the caches. What they hold stays, and other threads
// and processes may use it meanwhile. Cost: that of a copy.
void UseHugePages(std::span<std::byte> memory);

// Two lines, since processors fetch cache lines in pairs.
inline constexpr size_t kCacheLinePair = 128;

// Pieces that may be under way from one rank to another: one being written, one
// being read, and slack for the two to drift. With GroupOptions::slot_bytes as
// it is, a mailbox fits in half of a 1 MiB second-level cache.
inline constexpr int kSlotsPerMailbox = 4;

// What a call may put beside itself, for the other ranks to read.
inline constexpr int64_t kStagedBytes = 16 << 10;
// Calls after which that memory is used again. Two would do (as of CallSlot),
// but a line is written faster when another core has read it a while ago.
inline constexpr int kStagedCalls = 16;

struct RegionShape {
  int world_size;
  int64_t slot_bytes;  // A multiple of 64.
  Algorithm algorithm = Algorithm::kAuto;
};

// How many pieces of messages a rank has room to stage (staged.h). Three would
// do, but a line is written faster when another core has read it a while ago.
// More would be out of the caches when their turn comes.
inline constexpr int kStagedPieces = 4;

// The bytes of a piece, at most, a multiple of 64; and of all of them. With
// GroupOptions::slot_bytes as it is, 256 KiB and 1 MiB, half of a second-level
// cache.
int64_t PieceBytes(const RegionShape& shape);
int64_t PiecesBytes(const RegionShape& shape);

// Why the group failed. `failed_rank` decides: who swaps it from 0 to its rank
// + 1 has told the first cause, and its RankControl holds it.
struct RegionHeader {
  uint64_t magic;
  RegionShape shape;
  alignas(kCacheLinePair) std::atomic<uint32_t> failed_rank;
  // In groups of many: how many ranks have begun, or completed, a call, over
  // all calls.
  alignas(kCacheLinePair) std::atomic<uint64_t> begun;
  alignas(kCacheLinePair) std::atomic<uint64_t> completed;
};

// Where a rank has a buffer, in terms that mean the same to every rank.
struct Place {
  enum Kind : int32_t {
    kUnreachable = 0,   // For other ranks.
    kAddressSpace = 1,  // Ranks are threads: `offset` is the address.
    kAllocation = 2,    // Allocation `number` of the group, at `offset` bytes.
    kStaged = 3,        // Staged with the call.
    kNothing = 4,       // Nothing that another rank would want.
    kHere = 5,          // An input of at most kHereBytes, in the CallSlot.
  };
  Kind kind = kUnreachable;
  int32_t number = 0;
  uint64_t offset = 0;
};

// A call that a rank has reached. Calls are numbered from 1. What other ranks
// read of one that they agree on lies in one line, since each line that comes
// from another core costs as much as the rest of a small call.
struct alignas(kCacheLinePair) CallSlot {
  std::atomic<uint64_t> sequence;
  // Valid once `sequence` is its number. The message of an input that is kHere
  // lies in the rest of it, in `output`, which nobody wants then, and in
  // `more`.
  Place input;
  Place output;
  std::byte more[8];
  Call call;

  std::byte* here() {
    return reinterpret_cast<std::byte*>(this) + offsetof(CallSlot, input) +
           offsetof(Place, offset);
  }
};
static_assert(offsetof(CallSlot, call) + offsetof(Call, line) <= 64);
inline constexpr int64_t kHereBytes = offsetof(CallSlot, call) -
                                      offsetof(CallSlot, input) -
                                      offsetof(Place, offset);

// A Call that others may read at any time.
class AtomicCall {
 public:
  void Store(const Call& call);
  Call Load() const;

 private:
  static constexpr size_t kWords = sizeof(Call) / sizeof(uint64_t);
  static_assert(sizeof(Call) % sizeof(uint64_t) == 0);
  std::atomic<uint64_t> words_[kWords];
};

constexpr uint64_t PartnerWord(uint64_t sequence, int rank) {
  return sequence << 8 | (static_cast<uint64_t>(rank) + 1);
}

// What one rank tells the others.
struct RankControl {
  // Two slots, call n in n % 2, suffice: a rank overwrites call n-2 after it
  // has seen every rank reach n-1, which each does only when it has read all of
  // n-2. A rank that has failed overwrites nothing.
  CallSlot calls[2];

  // How many calls this rank has completed.
  alignas(kCacheLinePair) std::atomic<uint64_t> completed;

  // The ranks that this one sleeps for, one bit each. Who does what a set bit
  // waits for clears the set, bumps the doorbell and wakes it.
  alignas(kCacheLinePair) std::atomic<uint64_t> waiting_for;
  std::atomic<uint32_t> doorbell;

  // While this rank sends to or receives from one other: how manieth such call
  // of the two that is, and the other, as PartnerWord has them; else 0.
  std::atomic<uint64_t> partner;
  AtomicCall with_partner;

  // 1 while this rank reads and writes other ranks' buffers.
  std::atomic<uint32_t> in_memory;

  // Written by the rank alone, and seldom.
  alignas(kCacheLinePair) std::atomic<uint32_t> left;  // 1 once it left.
  std::atomic<int64_t> pid;          // 0 where ranks are threads.
  std::atomic<int64_t> awake_nanos;  // Steady clock, when it last looked.
  int32_t failure_code;              // absl::StatusCode.
  uint32_t failure_size;
  char failure[768];
};

// First in, first out, from one rank to one other. Both numbers only grow; the
// k-th piece lies in slot k % kSlotsPerMailbox.
struct Mailbox {
  alignas(kCacheLinePair) std::atomic<uint64_t> sent;   // By the sender.
  alignas(kCacheLinePair) std::atomic<uint64_t> freed;  // By the receiver.
  alignas(kCacheLinePair) int64_t sizes[kSlotsPerMailbox];
};

// Owns one mapping of a group's memory. A mailbox that no two ranks use costs
// address space alone, since its pages are never touched. Nothing in it has a
// name in the file system: it goes when the last mapping does.
class SharedRegion {
 public:
  // For threads; if shareable for processes, of which the others open `path()`
  // while this one holds it. Error: kResourceExhausted without memory.
  static absl::StatusOr<SharedRegion> Create(const RegionShape& shape,
                                             bool shareable);

  // Maps what a shareable Create made. Errors: Create's; kUnavailable if it is
  // gone; kInvalidArgument if it is something else.
  static absl::StatusOr<SharedRegion> Open(const std::string& path);

  // As of SharedMemory.
  std::string path() const { return memory_.path(); }
  void CloseFile() { memory_.CloseFile(); }

  const RegionShape& shape() const { return header().shape; }
  RegionHeader& header() const {
    return *reinterpret_cast<RegionHeader*>(memory_.data());
  }
  RankControl& control(int rank) const { return controls_[rank]; }
  Mailbox& mailbox(int from, int to) const;
  // What `rank` stages with call `sequence`: kStagedBytes, aligned to 64.
  std::span<std::byte> staged(int rank, uint64_t sequence) const {
    const uint64_t index =
        static_cast<uint64_t>(rank) * kStagedCalls + sequence % kStagedCalls;
    return {staged_ + index * kStagedBytes, static_cast<size_t>(kStagedBytes)};
  }
  // Memory of the region, shape().slot_bytes, aligned to 64.
  std::span<std::byte> slot(int from, int to, uint64_t piece) const;
  // Where `rank` stages pieces of reductions (staged.h): PiecesBytes(shape()),
  // aligned to 64.
  std::span<std::byte> pieces(int rank) const;
  // The pieces of all ranks, aligned to a huge page.
  std::span<std::byte> all_pieces() const;

  // Where `rank` puts a region for the others, where ranks are threads, which
  // have this object in common. They read it after a call that comes after it.
  std::shared_ptr<SharedRegion>& handed_over(int rank) {
    return handed_over_[rank];
  }

 private:
  explicit SharedRegion(SharedMemory memory) : memory_(std::move(memory)) {}
  void Construct(const RegionShape& shape);
  void Locate(const RegionShape& shape);

  SharedMemory memory_;
  // In it; small calls cannot afford to look for them.
  RankControl* controls_ = nullptr;
  std::byte* staged_ = nullptr;
  std::vector<std::shared_ptr<SharedRegion>> handed_over_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_SHARED_REGION_H_
