#include "benchmarks/sampler/plan.h"

#include <algorithm>
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
  switch (subject) {
    case DrawSubject::kTorch:
      return "torch";
    case DrawSubject::kExact:
      return "exact";
    case DrawSubject::kPaddle:
      return "paddle";
    case DrawSubject::kPyTorch:
      return "PyTorch";
    case DrawSubject::kTable:
      break;
  }
  return "table";
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
  // A table of int32 and this rank's int64, which are 5 bytes a sample, and
  // what is kept besides.
  return 6 * size + (int64_t{16} << 20);
}

int64_t PyTorchMemory(int64_t size) {
  // A tensor of int64, a list, and an integer object for each of its elements;
  // then a quarter more, since the machine has other programs.
  return (8 + 8 + 32) * size * 5 / 4 + (int64_t{512} << 20);
}

}  // namespace lockstep::benchmarks
