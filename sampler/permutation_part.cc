// Fisher-Yates without random access to memory.
//
// The shuffle proceeds element by element: position i swaps its value with a
// later place. The positions are cut into segments that fit in a core's own
// cache, and the segments take turns. If the place lies in a later segment,
// position i only sends a message to that segment: "put my value at that
// place".
//
// A segment begins its turn by reading its messages in the order in which they
// were sent, which is the order of the steps. Each message takes the value at
// its place, which is the final value of the sender's position, and leaves its
// own value there. Then the segment takes its own steps. If the place of a step
// lies in the segment itself, the value is taken at once.
//
// All values that are taken for the wanted positions go to one list. Within one
// segment the list is in the order of the steps. For each wanted position it is
// therefore enough to record the segment of its place: its value is the next
// one that was taken in that segment.
#include "sampler/permutation_part.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "sampler/permutation.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

// A table of this size stays in the last-level cache of most machines.
constexpr int64_t kMinSizeForMessages = int64_t{1} << 23;

// 512 KiB: fits in a core's own cache together with the ends of all boxes.
constexpr int kSegmentBits = 17;

// A message holds a value in its low bits, whether the taken value is wanted,
// and a place in the segment.
using Message = uint64_t;
constexpr int kWantedBit = 31;
constexpr int kPlaceShift = 32;
constexpr Message kValueMask = (Message{1} << kWantedBit) - 1;

// Maps memory that is about to be written, all at once if the system supports
// it. Mapping page by page on first access costs several times as much. data:
// host [bytes], its contents unspecified; borrowed.
void Populate(void* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t end = (begin + static_cast<uintptr_t>(bytes)) / page * page;
  // Pages that are not mapped here are mapped when they are written.
  if (first < end) {
    madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
  }
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

// A queue of messages for each segment, in pages that are reused.
class Mailboxes {
 public:
  // Memory is touched only when messages are written to it.
  Mailboxes(int64_t boxes, int64_t most_messages)
      : pages_(std::make_unique_for_overwrite<Message[]>(
            most_messages + (boxes + 1) * kPageSize)),
        first_page_(boxes),
        end_(boxes) {
    Populate(pages_.get(),
             static_cast<int64_t>(kMaxWaitingShare * sizeof(Message) *
                                  static_cast<double>(most_messages)));
    for (int64_t box = 0; box < boxes; ++box) {
      first_page_[box] = TakePage();
      end_[box] = first_page_[box] * kPageSize;
    }
  }

  void Send(uint32_t box, Message message) {
    const uint32_t at = end_[box];
    pages_[at] = message;
    // Prefetches the next line of the page, so that it is in the cache in time.
    __builtin_prefetch(&pages_[at] + 8, 1);
    end_[box] = at + 1;
    if ((at + 1) % kPageSize == 0) ContinueOnNewPage(box);
  }

  // Calls read(message) for each message in a box and frees the memory of the
  // box, which is not used again.
  template <typename Read>
  void Receive(uint32_t box, Read read) {
    const uint32_t last_page = end_[box] / kPageSize;
    for (uint32_t page = first_page_[box]; page != last_page;
         page = next_page_[page]) {
      const Message* const next = &pages_[next_page_[page] * kPageSize];
      for (int line = 0; line < 4; ++line) __builtin_prefetch(next + 8 * line);
      ReadPage(page, kPageSize, read);
    }
    ReadPage(last_page, end_[box] % kPageSize, read);
  }

 private:
  static constexpr uint32_t kPageSize = 1024;  // Messages: 8 KiB.

  // After a share t of the steps, -(1 - t) ln(1 - t) of all messages are sent
  // and not yet read, if none stays in its segment. The maximum is 1 / e.
  static constexpr double kMaxWaitingShare = 0.368;

  uint32_t TakePage() {
    if (free_.empty()) {
      next_page_.push_back(0);
      return static_cast<uint32_t>(next_page_.size()) - 1;
    }
    const uint32_t page = free_.back();
    free_.pop_back();
    return page;
  }

  void ContinueOnNewPage(uint32_t box) {
    const uint32_t page = TakePage();
    next_page_[(end_[box] - 1) / kPageSize] = page;
    end_[box] = page * kPageSize;
  }

  template <typename Read>
  void ReadPage(uint32_t page, uint32_t count, Read read) {
    const Message* const messages = &pages_[page * kPageSize];
    for (uint32_t k = 0; k < count; ++k) read(messages[k]);
    free_.push_back(page);
  }

  std::unique_ptr<Message[]> pages_;
  std::vector<uint32_t> next_page_;   // Indexed by every page that was taken.
  std::vector<uint32_t> free_;        // Free pages.
  std::vector<uint32_t> first_page_;  // The first page of each box.
  std::vector<uint32_t> end_;         // Where each box's next message goes.
};

// Returns how many of the part's positions come before the wrap.
int64_t CountBeforeWrap(const StridedPart& part) {
  if (part.first >= part.length) return 0;
  return std::min(part.count,
                  (part.length - part.first + part.stride - 1) / part.stride);
}

// The positions of a part in ascending order, each once. This is the part's own
// order, except that its last position may be padding: one of the first.
class WantedPositions {
 public:
  explicit WantedPositions(const StridedPart& part)
      : stride_(part.stride), left_(CountBeforeWrap(part)) {
    if (left_ > 0) strided_ = part.At(0);
    if (left_ < part.count) padding_ = part.At(left_);
  }

  int64_t next() const { return std::min(strided_, padding_); }

  void Advance() {
    const int64_t done = next();
    if (padding_ == done) padding_ = kNone;
    if (strided_ == done) strided_ = --left_ > 0 ? strided_ + stride_ : kNone;
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t stride_;
  int64_t left_;
  int64_t strided_ = kNone;
  int64_t padding_ = kNone;
};

// Moves the padding from its place among the ascending positions to the end.
void MovePaddingToEnd(const StridedPart& part, std::vector<int64_t>& list) {
  const int64_t strided = CountBeforeWrap(part);
  if (strided == part.count) return;
  const int64_t padding = part.At(strided);
  int64_t before = 0;
  while (before < strided && part.At(before) < padding) ++before;
  const int64_t value = list[before];
  if (before == strided || part.At(before) != padding) {
    list.erase(list.begin() + before);
  }
  list.resize(strided);
  list.push_back(value);
}

class MessageShuffle {
 public:
  MessageShuffle(uint64_t seed, int64_t size, const StridedPart& part,
                 int segment_bits)
      : size_(size),
        bits_(segment_bits),
        segments_(((size - 1) >> segment_bits) + 1),
        places_(seed, size),
        wanted_(part),
        mail_(segments_, size),
        values_(size_t{1} << segment_bits),
        taken_(std::make_unique_for_overwrite<int32_t[]>(part.count + 1)),
        taken_begins_(segments_) {
    Populate(taken_.get(), part.count * int64_t{sizeof(int32_t)});
    list_.reserve(part.count);
    Populate(list_.data(), part.count * int64_t{sizeof(int64_t)});
    list_.resize(part.count);
  }

  // Returns the final values of the wanted positions, in ascending order of
  // position.
  std::vector<int64_t> Run() {
    for (int64_t segment = 0; segment < segments_; ++segment) {
      const int64_t first = segment << bits_;
      std::iota(values_.begin(), values_.end(), static_cast<int32_t>(first));
      taken_begins_[segment] = taken_count_;
      ReadMessages(static_cast<uint32_t>(segment));
      TakeSteps(static_cast<uint32_t>(segment), first,
                std::min(size_, first + (int64_t{1} << bits_)));
    }
    for (int64_t k = 0; k < wanted_count_; ++k) {
      list_[k] = taken_[taken_begins_[list_[k]]++];
    }
    return std::move(list_);
  }

 private:
  void ReadMessages(uint32_t segment) {
    int32_t* const values = values_.data();
    int32_t* const taken = taken_.get();
    int64_t count = taken_count_;
    mail_.Receive(segment, [=, &count](Message message) {
      const auto place = static_cast<uint32_t>(message >> kPlaceShift);
      // Written in any case, and kept only if it is wanted: this avoids a
      // branch.
      taken[count] = values[place];
      count += static_cast<int64_t>(message >> kWantedBit & 1);
      values[place] = static_cast<int32_t>(message & kValueMask);
    });
    taken_count_ = count;
  }

  // Takes the steps of positions [first, end), which belong to the segment.
  void TakeSteps(uint32_t segment, int64_t first, int64_t end) {
    for (int64_t next = first; next < end;) {
      if (places_left_ == 0) {
        places_left_ = places_.Next(block_.data());
        next_place_ = block_.data();
      }
      const auto count =
          static_cast<int>(std::min<int64_t>(places_left_, end - next));
      TakeSteps(segment, first, next, count);
      next += count;
      next_place_ += count;
      places_left_ -= count;
    }
  }

  // Takes the next `count` steps, from position `next` on.
  void TakeSteps(uint32_t segment, int64_t first, int64_t next, int count) {
    const int bits = bits_;
    const uint32_t mask = (uint32_t{1} << bits) - 1;
    const uint32_t* const places = next_place_;
    int32_t* const values = values_.data();
    const int32_t* const own = values + (next - first);
    int64_t next_wanted = wanted_.next() - next;
    for (int k = 0; k < count; ++k) {
      const uint32_t place = places[k] & mask;
      const uint32_t other = places[k] >> bits;
      const int32_t value = own[k];
      const bool is_wanted = k == next_wanted;
      if (is_wanted) {
        list_[wanted_count_++] = other;
        wanted_.Advance();
        next_wanted = wanted_.next() - next;
      }
      if (other != segment) {
        mail_.Send(other, Message{place} << kPlaceShift |
                              Message{is_wanted} << kWantedBit |
                              static_cast<uint32_t>(value));
        continue;
      }
      if (is_wanted) taken_[taken_count_++] = values[place];
      values[place] = value;
    }
  }

  const int64_t size_;
  const int bits_;
  const int64_t segments_;
  SwapPlaces places_;
  WantedPositions wanted_;
  Mailboxes mail_;
  std::vector<int32_t> values_;       // The values of the current segment.
  std::unique_ptr<int32_t[]> taken_;  // The values taken for wanted positions.
  int64_t taken_count_ = 0;
  std::vector<int64_t> taken_begins_;  // Where those of each segment begin.
  std::vector<int64_t> list_;  // First their segments, later their values.
  int64_t wanted_count_ = 0;   // The number of wanted positions so far.
  std::array<uint32_t, SwapPlaces::kBlockSize> block_;
  const uint32_t* next_place_ = nullptr;  // The next of the places drawn ahead.
  int places_left_ = 0;
};

}  // namespace

namespace permutation_internal {

std::vector<int64_t> PartOfTable(uint64_t seed, int64_t size,
                                 const StridedPart& part) {
  const auto table = std::make_unique_for_overwrite<int32_t[]>(size);
  RandomPermutation(seed, std::span(table.get(), size));
  std::vector<int64_t> list(part.count);
  for (int64_t k = 0; k < part.count; ++k) list[k] = table[part.At(k)];
  return list;
}

std::vector<int64_t> PartByMessages(uint64_t seed, int64_t size,
                                    const StridedPart& part, int segment_bits) {
  std::vector<int64_t> list =
      MessageShuffle(seed, size, part, segment_bits).Run();
  MovePaddingToEnd(part, list);
  return list;
}

}  // namespace permutation_internal

std::vector<int64_t> PermutationPart(uint64_t seed, int64_t size,
                                     const StridedPart& part) {
  if (size < kMinSizeForMessages || size >= kWideDrawSize ||
      part.count - CountBeforeWrap(part) > 1) {
    return permutation_internal::PartOfTable(seed, size, part);
  }
  return permutation_internal::PartByMessages(seed, size, part, kSegmentBits);
}

}  // namespace lockstep
