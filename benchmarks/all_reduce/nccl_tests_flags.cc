#include "benchmarks/all_reduce/nccl_tests_flags.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

struct NcclTestsFlag {
  char letter;
  absl::string_view name;
  absl::string_view ours;         // Our flag; empty if there is none.
  absl::string_view advice = {};  // What to do if there is none.
};

constexpr absl::string_view kOneThread =
    "each rank is a process or a thread: give the number of ranks with "
    "--world_size";
constexpr absl::string_view kNotSupported = "is not supported; leave it out";

constexpr NcclTestsFlag kFlags[] = {
    {'b', "minbytes", "min_bytes"},
    {'e', "maxbytes", "max_bytes"},
    {'f', "stepfactor", "factor"},
    {'n', "iters", "iterations"},
    {'w', "warmup_iters", "warmup"},
    {'c', "check", "check"},
    {'g', "ngpus", "world_size"},
    {'d', "datatype", "dtype"},
    {'o', "op", "op"},
    {'i', "stepbytes", "", "sizes grow by a factor: use --factor"},
    {'t', "nthreads", "", kOneThread},
    {'p', "parallel_init", "",
     "ranks always start at the same time; leave it out"},
    {'m', "agg_iters", "", kNotSupported},
    {'r', "root", "", "the root of a broadcast is rank 0; leave it out"},
    {'z', "blocking", "", kNotSupported},
    {'G', "cudagraph", "", kNotSupported},
    {'C', "report_cputime", "",
     "a run on GPUs always shows host us; leave it out"},
    {'a', "average", "", "times are those of the slowest rank; leave it out"},
    {'T', "timeout", "timeout"},
};

// The names of types in nccl-tests, and ours.
constexpr std::pair<absl::string_view, absl::string_view> kTypeNames[] = {
    {"float", "float32"}, {"double", "float64"}, {"half", "float16"}};

// A flag of nccl-tests at the start of an argument.
struct FoundFlag {
  const NcclTestsFlag* flag = nullptr;
  std::string typed;                 // "-b", "--minbytes".
  std::optional<std::string> value;  // Set if the argument holds it too.
};

std::optional<FoundFlag> FindFlag(absl::string_view argument) {
  for (const NcclTestsFlag& flag : kFlags) {
    const std::string name = absl::StrCat("--", flag.name);
    absl::string_view rest = argument;
    if (flag.name != flag.ours && absl::ConsumePrefix(&rest, name) &&
        (rest.empty() || rest[0] == '=')) {
      FoundFlag found = {&flag, name, std::nullopt};
      if (absl::ConsumePrefix(&rest, "=")) found.value = std::string(rest);
      return found;
    }
    rest = argument;
    const std::string letter = {'-', flag.letter};
    if (!absl::ConsumePrefix(&rest, letter)) continue;
    if (rest.empty()) return FoundFlag{&flag, letter, std::nullopt};
    // Our flags may have a single dash too: "-backend=threads".
    if (absl::ascii_isdigit(static_cast<unsigned char>(rest[0]))) {
      return FoundFlag{&flag, letter, std::string(rest)};
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Translate(const FoundFlag& found,
                                      absl::string_view value) {
  const NcclTestsFlag& flag = *found.flag;
  // Every rank's process has one thread, so "-t 1" changes nothing.
  if (flag.letter == 't' && value == "1") return "";
  if (flag.ours.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        found.typed, flag.advice == kNotSupported ? " " : ": ", flag.advice));
  }
  if (value == "all" && (flag.ours == "dtype" || flag.ours == "op")) {
    return absl::InvalidArgumentError(absl::StrCat(
        found.typed, " all: a run has one ", flag.ours == "op" ? "op" : "type",
        "; run it once for each, as with --", flag.ours, "=",
        flag.ours == "op" ? "sum" : "float32"));
  }
  if (flag.ours == "dtype") {
    for (const auto& [theirs, ours] : kTypeNames) {
      if (value == theirs) value = ours;
    }
  }
  return absl::StrCat("--", flag.ours, "=", value);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TranslateNcclTestsFlags(
    std::span<char* const> argv) {
  std::vector<std::string> arguments;
  for (size_t i = 0; i < argv.size(); ++i) {
    std::optional<FoundFlag> found;
    if (i > 0) found = FindFlag(argv[i]);
    if (!found.has_value()) {
      arguments.emplace_back(argv[i]);
      continue;
    }
    if (!found->value.has_value()) {
      if (i + 1 == argv.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat(found->typed, " needs a value"));
      }
      found->value = argv[++i];
    }
    LOCKSTEP_ASSIGN_OR_RETURN(std::string argument,
                              Translate(*found, *found->value));
    if (!argument.empty()) arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::string NcclTestsFlagsText() {
  std::string text;
  for (const NcclTestsFlag& flag : kFlags) {
    if (flag.ours.empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "-",
                    absl::string_view(&flag.letter, 1), " --", flag.ours);
  }
  return text;
}

}  // namespace lockstep::benchmarks
