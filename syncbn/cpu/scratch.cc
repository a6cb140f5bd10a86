// Aligned host memory.
#include "syncbn/cpu/scratch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> AllocateHost(int64_t bytes) {
  void* const memory =
      ::operator new(static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                     kAlignment, std::nothrow);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("batch norm: no host memory for ", bytes, " bytes"));
  }
  return std::shared_ptr<std::byte>(
      static_cast<std::byte*>(memory),
      [](std::byte* p) { ::operator delete(p, kAlignment); });
}

absl::StatusOr<std::byte*> Scratch::Reserve(int64_t bytes) {
  if (bytes > bytes_ || memory_ == nullptr) {
    memory_ = nullptr;
    bytes_ = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateHost(bytes));
    bytes_ = bytes;
  }
  return memory_.get();
}

}  // namespace lockstep
