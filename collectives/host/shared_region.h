// The memory that the ranks of a host group share, and its layout.
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

// Owns one mapping. It is zero at first and aligned to a page, or to a huge
// page if it is as large as one. Only address space is reserved: pages are
// allocated when touched, and freed with the last mapping. Errors of all
// factories: kResourceExhausted without memory, or beyond the process's file
// size limit.
class SharedMemory {
 public:
  // Creates memory for ranks that are threads; no other process can open it.
  static absl::StatusOr<SharedMemory> CreatePrivate(int64_t size);

  // Creates memory for processes. Others open `path()` while this process holds
  // it.
  static absl::StatusOr<SharedMemory> Create(int64_t size);

  // Maps all of the memory that Create made. Errors: kUnavailable if it is
  // gone.
  static absl::StatusOr<SharedMemory> Open(const std::string& path);

  std::byte* data() const { return base_.get(); }
  int64_t size() const { return base_.get_deleter().size; }

  // Returns "/proc/<pid>/fd/<n>", or "" after CloseFile or without a file.
  std::string path() const;
  // Closes the file. No other process can then open the memory.
  void CloseFile() { file_.Close(); }

  // Frees the pages of [offset, offset + size) for every process; both ends are
  // page boundaries. The pages then read as zero.
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

// Maps these pages now, if the system supports it, so that no call waits for
// the system page by page.
void TouchPages(std::span<std::byte> memory);

// Requests huge pages for memory that is first touched later, if the system
// supports it. `memory` begins at a page.
void ExpectHugePages(std::span<std::byte> memory);

// Moves the whole huge pages that lie in `memory` into huge pages, for every
// process that maps it, if the system supports it (Linux 6.1). Without huge
// pages each process looks up 512 times as many pages. If neither the page
// entries nor the data are in the caches, that takes as long as reducing the
// data. The contents stay, and other threads and processes may use the memory
// meanwhile. Cost: that of a copy.
void UseHugePages(std::span<std::byte> memory);

// Two cache lines, because processors fetch them in pairs.
inline constexpr size_t kCacheLinePair = 128;

// The pieces that may be under way from one rank to another: one being written,
// one being read, and slack for the two ranks to drift. With the default
// GroupOptions::slot_bytes, a mailbox fits in half of a 1 MiB second-level
// cache.
inline constexpr int kSlotsPerMailbox = 4;

// The bytes that a rank may stage with a call, for the other ranks to read.
inline constexpr int64_t kStagedBytes = 16 << 10;
// The number of calls after which that memory is used again. Two would suffice
// (as for CallSlot), but writing a line is faster if another core has read it a
// while ago.
inline constexpr int kStagedCalls = 16;

struct RegionShape {
  int world_size;
  int64_t slot_bytes;  // A multiple of 64.
  Algorithm algorithm = Algorithm::kAuto;
};

// The pieces of messages that a rank can stage at a time (staged.h). Three
// would suffice, but writing a line is faster if another core has read it a
// while ago. More pieces would be out of the caches before their next use.
inline constexpr int kStagedPieces = 4;

// Return the largest size of a piece, a multiple of 64, and the size of all
// pieces of a rank. With the default GroupOptions::slot_bytes they are 256 KiB
// and 1 MiB, half of a second-level cache.
int64_t PieceBytes(const RegionShape& shape);
int64_t PiecesBytes(const RegionShape& shape);

// The head of the region. `failed_rank` decides why the group failed: the rank
// that swaps it from 0 to its rank + 1 has the first cause, which its
// RankControl holds.
struct RegionHeader {
  uint64_t magic;
  RegionShape shape;
  alignas(kCacheLinePair) std::atomic<uint32_t> failed_rank;
  // Used in large groups: the number of ranks that have begun, or completed, a
  // call, summed over all calls.
  alignas(kCacheLinePair) std::atomic<uint64_t> begun;
  alignas(kCacheLinePair) std::atomic<uint64_t> completed;
};

// The place of a rank's buffer, in terms that have the same meaning on every
// rank.
struct BufferLocation {
  enum Kind : int32_t {
    kUnreachable = 0,   // Other ranks cannot reach it.
    kAddressSpace = 1,  // Ranks are threads: `offset` is the address.
    kAllocation = 2,    // Allocation `number` of the group, at `offset` bytes.
    kStaged = 3,        // Staged with the call.
    kNothing = 4,       // No other rank needs it.
    kInline = 5,        // An input of at most kInlineBytes, in the CallSlot.
  };
  Kind kind = kUnreachable;
  int32_t number = 0;
  uint64_t offset = 0;
};

// A call that a rank has reached. Calls are numbered from 1. The fields that
// other ranks read when they agree on the call lie in one line. Each line that
// comes from another core costs as much as the rest of a small call.
struct alignas(kCacheLinePair) CallSlot {
  std::atomic<uint64_t> sequence;
  // Valid once `sequence` is the number of the call. If the input is kInline,
  // its data lies in the rest of `input`, in `output`, which no rank reads
  // then, and in `more`.
  BufferLocation input;
  BufferLocation output;
  std::byte more[8];
  Call call;

  std::byte* here() {
    return reinterpret_cast<std::byte*>(this) + offsetof(CallSlot, input) +
           offsetof(BufferLocation, offset);
  }
};
static_assert(offsetof(CallSlot, call) + offsetof(Call, line) <= 64);
inline constexpr int64_t kInlineBytes = offsetof(CallSlot, call) -
                                        offsetof(CallSlot, input) -
                                        offsetof(BufferLocation, offset);

// A Call that other ranks may read at any time.
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

// The words of one rank that the others read.
struct RankControl {
  // Two slots, with call n in n % 2, suffice. A rank overwrites call n-2 after
  // it has seen every rank reach n-1, and each rank reaches n-1 only when it
  // has read all of n-2. A rank that has failed overwrites nothing.
  CallSlot calls[2];

  // The number of calls that this rank has completed.
  alignas(kCacheLinePair) std::atomic<uint64_t> completed;

  // The ranks that this rank sleeps for, one bit each. A rank that does the
  // awaited step clears the set, bumps the doorbell and wakes this rank.
  alignas(kCacheLinePair) std::atomic<uint64_t> waiting_for;
  std::atomic<uint32_t> doorbell;

  // PartnerWord of the number of the call and the other rank, while this rank
  // sends to or receives from one rank; else 0.
  std::atomic<uint64_t> partner;
  AtomicCall with_partner;

  // 1 while this rank reads and writes other ranks' buffers.
  std::atomic<uint32_t> in_memory;

  // Written seldom, and only by this rank.
  alignas(kCacheLinePair) std::atomic<uint32_t> left;  // 1 once it left.
  std::atomic<int64_t> pid;          // 0 where ranks are threads.
  std::atomic<int64_t> awake_nanos;  // Steady clock, at its last look.
  int32_t failure_code;              // absl::StatusCode.
  uint32_t failure_size;
  char failure[768];
};

// A queue of pieces from one rank to another, first in, first out. Both numbers
// only grow. The k-th piece lies in slot k % kSlotsPerMailbox.
struct Mailbox {
  alignas(kCacheLinePair) std::atomic<uint64_t> sent;   // By the sender.
  alignas(kCacheLinePair) std::atomic<uint64_t> freed;  // By the receiver.
  alignas(kCacheLinePair) int64_t sizes[kSlotsPerMailbox];
};

// Owns one mapping of a group's memory. A mailbox that no two ranks use costs
// only address space, because its pages are never touched. The memory has no
// name in the file system and is freed with the last mapping.
class SharedRegion {
 public:
  // Creates a region for threads, or, if shareable, for processes. Other
  // processes open `path()` while this process holds the region. Error:
  // kResourceExhausted without memory.
  static absl::StatusOr<SharedRegion> Create(const RegionShape& shape,
                                             bool shareable);

  // Maps a region that a shareable Create made. Errors: Create's; kUnavailable
  // if it is gone; kInvalidArgument if it is not such a region.
  static absl::StatusOr<SharedRegion> Open(const std::string& path);

  // Like SharedMemory's functions.
  std::string path() const { return memory_.path(); }
  void CloseFile() { memory_.CloseFile(); }

  const RegionShape& shape() const { return header().shape; }
  RegionHeader& header() const {
    return *reinterpret_cast<RegionHeader*>(memory_.data());
  }
  RankControl& control(int rank) const { return controls_[rank]; }
  Mailbox& mailbox(int from, int to) const;
  // Returns the memory in which `rank` stages call `sequence`: kStagedBytes,
  // aligned to 64.
  std::span<std::byte> staged(int rank, uint64_t sequence) const {
    const uint64_t index =
        static_cast<uint64_t>(rank) * kStagedCalls + sequence % kStagedCalls;
    return {staged_ + index * kStagedBytes, static_cast<size_t>(kStagedBytes)};
  }
  // Returns a slot of a mailbox: shape().slot_bytes, aligned to 64.
  std::span<std::byte> slot(int from, int to, uint64_t piece) const;
  // Returns the memory in which `rank` stages pieces of reductions (staged.h):
  // PiecesBytes(shape()), aligned to 64.
  std::span<std::byte> pieces(int rank) const;
  // Returns the pieces of all ranks, aligned to a huge page.
  std::span<std::byte> all_pieces() const;

  // Returns the region that `rank` hands to the others, if ranks are threads,
  // which share this object. The others read it after a later call.
  std::shared_ptr<SharedRegion>& handed_over(int rank) {
    return handed_over_[rank];
  }

 private:
  explicit SharedRegion(SharedMemory memory) : memory_(std::move(memory)) {}
  void Construct(const RegionShape& shape);
  void Locate(const RegionShape& shape);

  SharedMemory memory_;
  // Addresses in the memory, stored because computing them is too slow for
  // small calls.
  RankControl* controls_ = nullptr;
  std::byte* staged_ = nullptr;
  std::vector<std::shared_ptr<SharedRegion>> handed_over_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_SHARED_REGION_H_
