#include "models/io/fuzz_inputs.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// The words that mutations insert, separated by spaces.
constexpr absl::string_view kWords =
    "null true {} [] \"\" -1 1e999 0.5 \"nan\" NaN [[[[[[[[[[[[[[[[[ "
    "18446744073709551616 9223372036854775808 \"\\ud800\" \xff \"a\":1, , }";

}  // namespace

// These mutations are simple and work with every compiler. libFuzzer's
// mutations are better, but need clang.
std::string MutateSeed(std::span<const std::string> seeds,
                       std::mt19937& random) {
  static const auto& words =
      *new std::vector<std::string>(absl::StrSplit(kWords, ' '));
  const auto below = [&](size_t end) { return end == 0 ? 0 : random() % end; };
  std::string input = seeds[below(seeds.size())];
  for (size_t left = 1 + below(4); left > 0; --left) {
    const size_t at = below(input.size());
    const size_t length = 1 + below(8);
    switch (below(7)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] ^= static_cast<char>(1 << below(8));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(at, length));
        break;
      case 4: {
        const std::string& other = seeds[below(seeds.size())];
        const size_t from = below(other.size());
        input.insert(at, other.substr(from, below(other.size() - from)));
        break;
      }
      case 5:
        input.resize(at);
        break;
      default: {
        const size_t removed = below(3);
        input.replace(at, removed, words[below(words.size())]);
      }
    }
  }
  return input;
}

absl::Status WriteSeeds(const std::string& folder,
                        std::span<const std::string> seeds) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::ErrnoToStatus(error.value(), folder);
  for (size_t i = 0; i < seeds.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(
        ReplaceFile(absl::StrCat(folder, "/seed-", i), seeds[i]));
  }
  return absl::OkStatus();
}

std::string CheckMessage(const absl::Status& error, const std::string& name) {
  constexpr size_t kMostBytes = 1000;
  const std::string message(error.message());
  if (!absl::StartsWith(message, name + ": ")) {
    return "an error that does not begin with the file's name";
  }
  if (message.size() > kMostBytes) return "an error that is too long";
  const bool printable =
      std::none_of(message.begin(), message.end(),
                   [](unsigned char c) { return absl::ascii_iscntrl(c); });
  return printable ? "" : "an error that is not one printable line";
}

}  // namespace lockstep
