// Memory that a group allocated.
#ifndef LOCKSTEP_COLLECTIVES_GROUP_BUFFER_H_
#define LOCKSTEP_COLLECTIVES_GROUP_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace lockstep {

// One rank's part of what Communicator::Allocate made. Owns it: the memory goes
// with the last copy.
class GroupBuffer {
 public:
  GroupBuffer() = default;
  GroupBuffer(std::shared_ptr<void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<std::byte> bytes() const { return bytes_; }

  // The same memory as elements of T; what does not fill an element is left
  // out.
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::shared_ptr<void> owner_;
  std::span<std::byte> bytes_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_GROUP_BUFFER_H_
