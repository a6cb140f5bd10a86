#include "models/io/fuzz_inputs.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

constexpr const char* kWords[] = {"null",
                                  "true",
                                  "{}",
                                  "[]",
                                  "\"\"",
                                  "-1",
                                  "1e999",
                                  "0.5",
                                  "\"nan\"",
                                  "NaN",
                                  "[[[[[[[[[[[[[[[[[",
                                  "18446744073709551616",
                                  "9223372036854775808",
                                  "\"\\ud800\"",
                                  "\xff",
                                  "\"a\":1,",
                                  ",",
                                  "}"};

// Plain mutations: libFuzzer has better ones, and needs clang.
class Mutation {
 public:
  Mutation(std::span<const std::string> seeds, std::mt19937& random)
      : seeds_(seeds), random_(random) {}

  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& Seed() { return seeds_[Below(seeds_.size())]; }

  void Change(std::string& input) {
    const size_t at = Below(input.size());
    const size_t length = 1 + Below(8);
    switch (Below(7)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random_());
        break;
      case 1:
        if (!input.empty()) input[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(at, length));
        break;
      case 4: {
        const std::string& other = Seed();
        const size_t from = Below(other.size());
        input.insert(at, other.substr(from, Below(other.size() - from)));
        break;
      }
      case 5:
        input.resize(at);
        break;
      default:
        input.replace(at, Below(3), kWords[Below(std::size(kWords))]);
    }
  }

 private:
  std::span<const std::string> seeds_;
  std::mt19937& random_;
};

}  // namespace

std::string Mutated(std::span<const std::string> seeds, std::mt19937& random) {
  Mutation mutation(seeds, random);
  std::string input = mutation.Seed();
  for (size_t left = 1 + mutation.Below(4); left > 0; --left) {
    mutation.Change(input);
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
