// What a driver and the ranks that it started send each other, as bytes.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_CODEC_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// A struct that lists its members, so that they travel one after the other:
//
//   struct Answer {
//     std::vector<double> seconds;
//     std::string note;
//     static auto Members(auto& self) {
//       return std::tie(self.seconds, self.note);
//     }
//   };
template <typename T>
concept ListsMembers = requires(T& value) {
  T::Members(value);
};

// Writes and reads values one after the other. Encode and Decode below are for
// who has one value.
class ByteWriter {
 public:
  template <typename T>
  void Write(const T& value) {
    if constexpr (ListsMembers<T>) {
      std::apply([this](const auto&... member) { (this->Write(member), ...); },
                 T::Members(value));
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    }
  }
  template <typename T>
  void Write(const std::vector<T>& values) {
    Write(static_cast<int64_t>(values.size()));
    for (const T& value : values) Write(value);
  }
  void Write(const std::string& text) {
    Write(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Each Read is false where the bytes end too early.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  bool Read(T& value) {
    if constexpr (ListsMembers<T>) {
      return std::apply(
          [this](auto&... member) { return (this->Read(member) && ...); },
          T::Members(value));
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      if (bytes_.size() < sizeof(T)) return false;
      std::memcpy(&value, bytes_.data(), sizeof(T));
      bytes_.remove_prefix(sizeof(T));
      return true;
    }
  }
  template <typename T>
  bool Read(std::vector<T>& values) {
    int64_t count = 0;
    if (!Read(count) || !IsLeft(count)) return false;
    values.clear();  // Grows as elements arrive, whatever the count says.
    for (int64_t i = 0; i < count; ++i) {
      if (!Read(values.emplace_back())) return false;
    }
    return true;
  }
  bool Read(std::string& text) {
    int64_t count = 0;
    if (!Read(count) || !IsLeft(count)) return false;
    text.assign(bytes_.data(), static_cast<size_t>(count));
    bytes_.remove_prefix(static_cast<size_t>(count));
    return true;
  }

  bool done() const { return bytes_.empty(); }

 private:
  bool IsLeft(int64_t count) const {
    return count >= 0 && count <= static_cast<int64_t>(bytes_.size());
  }

  absl::string_view bytes_;
};

// The value as bytes: of types that can be copied byte by byte, as they lie in
// memory, since both ends are programs of one build on one machine; strings;
// vectors; and structs that list their members.
template <typename T>
std::string Encode(const T& value) {
  ByteWriter writer;
  writer.Write(value);
  return writer.Take();
}

// Error: kDataLoss for bytes that are no T, the whole T and nothing else.
template <typename T>
absl::StatusOr<T> Decode(absl::string_view bytes) {
  T value = {};
  ByteReader reader(bytes);
  if (reader.Read(value) && reader.done()) return value;
  return absl::DataLossError("a message of another size than expected");
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_CODEC_H_
