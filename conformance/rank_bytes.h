// The results of a rank as bytes, for a reader in a process of the same
// machine. Supports numbers, strings and (nested) vectors of numbers. The
// reader must be called for the same types in the same order as the writer.
#ifndef LOCKSTEP_CONFORMANCE_RANK_BYTES_H_
#define LOCKSTEP_CONFORMANCE_RANK_BYTES_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/communicator.h"

namespace lockstep::conformance {

// Runs a function on every rank of a new group and returns each rank's bytes.
// RunRanksCollect in a form for suites that also run on other groups.
using RankFunction = std::function<absl::StatusOr<std::string>(Communicator&)>;
using RankRunner = std::function<std::vector<absl::StatusOr<std::string>>(
    int world_size, const RankFunction& fn)>;

class RankBytesWriter {
 public:
  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      (*this)(value.size());
      if constexpr (std::is_arithmetic_v<typename T::value_type>) {
        bytes.append(reinterpret_cast<const char*>(value.data()),
                     value.size() * sizeof(typename T::value_type));
      } else {
        for (const auto& element : value) (*this)(element);
      }
    }
  }

  std::string bytes;
};

class RankBytesReader {
 public:
  // Borrows the bytes.
  explicit RankBytesReader(absl::string_view bytes) : rest(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      Take(&value, sizeof(value));
    } else {
      size_t size = 0;
      Take(&size, sizeof(size));
      too_short = too_short || size > rest.size();
      value.resize(too_short ? 0 : size);
      if constexpr (std::is_arithmetic_v<typename T::value_type>) {
        Take(value.data(), value.size() * sizeof(typename T::value_type));
      } else {
        for (auto& element : value) (*this)(element);
      }
    }
  }

  absl::string_view rest;
  bool too_short = false;  // A read went past the end.

 private:
  void Take(void* to, size_t size) {
    too_short = too_short || size > rest.size();
    if (too_short || size == 0) return;
    std::memcpy(to, rest.data(), size);
    rest.remove_prefix(size);
  }
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_RANK_BYTES_H_
