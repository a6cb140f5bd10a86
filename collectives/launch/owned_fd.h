// A file descriptor that closes itself.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_OWNED_FD_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace lockstep {

// Owns one descriptor, or none (-1). Not thread safe.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_OWNED_FD_H_
