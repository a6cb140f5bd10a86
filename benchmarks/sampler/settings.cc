#include "benchmarks/sampler/settings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kLargestSize = 2'000'000'000;  // Tables are of int32.

}  // namespace

const char* Name(DrawSubject subject) {
  constexpr const char* kNames[] = {"torch", "exact", "paddle", "PyTorch",
                                    "table"};
  return kNames[static_cast<size_t>(subject)];
}

absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view text) {
  std::vector<int64_t> sizes;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(item, &size) || size < 1 || size > kLargestSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sizes has '", item, "', must be numbers from 1 to ",
                       kLargestSize, ", separated by commas"));
    }
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

absl::StatusOr<bool> ParseSamplerPeers(absl::string_view text) {
  if (text.empty()) return false;
  if (text == "torch") return true;
  return absl::InvalidArgumentError(
      absl::StrCat("--peers is '", text, "', must be torch or empty"));
}

absl::Status Validate(const SamplerSettings& settings) {
  constexpr int kMostRounds = 100000;
  if (settings.rounds < 0 || settings.rounds > kMostRounds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rounds is ", settings.rounds, ", must be from 0 to ", kMostRounds));
  }
  const absl::Status status = CheckSeconds("--seconds", settings.seconds);
  return status.ok() ? CheckSeconds("--timeout", settings.timeout) : status;
}

int64_t DrawMemory(int64_t size) {
  // A table of int32 and this rank's int64 are 5 bytes a sample. The rest is
  // for smaller allocations.
  return 6 * size + (int64_t{16} << 20);
}

int64_t PyTorchMemory(int64_t size) {
  // PyTorch needs a tensor of int64, a list, and an integer object for each of
  // its elements. A quarter is added because the machine has other programs.
  return (8 + 8 + 32) * size * 5 / 4 + (int64_t{512} << 20);
}

}  // namespace lockstep::benchmarks
