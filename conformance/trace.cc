// Traces as bytes: for each array its element count, then its elements.
#include "conformance/trace.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

void Append(int64_t value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
void Append(const std::vector<T>& values, std::string& out) {
  Append(static_cast<int64_t>(values.size()), out);
  out.append(reinterpret_cast<const char*>(values.data()),
             values.size() * sizeof(T));
}

absl::Status TooShort() {
  return absl::DataLossError("a rank's trace ends too early");
}

absl::StatusOr<int64_t> TakeCount(absl::string_view& rest) {
  int64_t count = 0;
  if (rest.size() < sizeof(count)) return TooShort();
  std::memcpy(&count, rest.data(), sizeof(count));
  rest.remove_prefix(sizeof(count));
  if (count < 0 || static_cast<uint64_t>(count) > rest.size()) {
    return TooShort();
  }
  return count;
}

template <typename T>
absl::Status TakeArray(absl::string_view& rest, std::vector<T>& out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, TakeCount(rest));
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  if (rest.size() < bytes) return TooShort();
  out.resize(count);
  if (count > 0) std::memcpy(out.data(), rest.data(), bytes);
  rest.remove_prefix(bytes);
  return absl::OkStatus();
}

absl::Status TakeArrays(absl::string_view& rest,
                        std::vector<std::vector<float>>& out) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t count, TakeCount(rest));
  out.resize(count);
  for (std::vector<float>& array : out) {
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(rest, array));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SerializeTrace(const RankTrace& trace) {
  std::string out;
  Append(static_cast<int64_t>(trace.parameters.size()), out);
  for (const std::vector<float>& array : trace.parameters) Append(array, out);
  Append(static_cast<int64_t>(trace.gradients.size()), out);
  for (const std::vector<float>& array : trace.gradients) Append(array, out);
  Append(static_cast<int64_t>(trace.samples.size()), out);
  for (const Samples& samples : trace.samples) {
    Append(samples.images, out);
    Append(samples.labels, out);
  }
  return out;
}

absl::StatusOr<RankTrace> ParseTrace(absl::string_view bytes) {
  RankTrace trace;
  LOCKSTEP_RETURN_IF_ERROR(TakeArrays(bytes, trace.parameters));
  LOCKSTEP_RETURN_IF_ERROR(TakeArrays(bytes, trace.gradients));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t steps, TakeCount(bytes));
  trace.samples.resize(steps);
  for (Samples& samples : trace.samples) {
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(bytes, samples.images));
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(bytes, samples.labels));
  }
  if (!bytes.empty()) {
    return absl::DataLossError("a rank's trace goes on after its end");
  }
  return trace;
}

}  // namespace lockstep
