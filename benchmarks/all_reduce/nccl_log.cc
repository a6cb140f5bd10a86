// Reads the log lines of NCCL 2.18 to 2.28. They are written in src/init.cc,
// src/enqueue.cc, src/transport.cc, src/transport/*.cc and src/misc/param.cc.
#include "benchmarks/all_reduce/nccl_log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep::benchmarks {
namespace {

// Returns the text after `before` on the line, or nothing if the line does not
// contain `before`.
absl::string_view After(absl::string_view line, absl::string_view before) {
  const size_t at = line.find(before);
  return at == line.npos ? "" : line.substr(at + before.size());
}

absl::string_view FirstWord(absl::string_view text) {
  return text.substr(0, text.find_first_of(" \t"));
}

// Sets `value` to the first word after `before`, if there is one.
void ReadWord(absl::string_view line, absl::string_view before,
              std::string& value) {
  const absl::string_view word = FirstWord(After(line, before));
  if (!word.empty()) value = std::string(word);
}

// Reads "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p
// channels, 32 p2p channels per peer". The number of collnet channels is
// skipped: it repeats the first number, whether there are such channels or not.
void ReadChannels(absl::string_view message, NcclFacts& facts) {
  if (!absl::StrContains(message, " coll channels, ")) return;
  std::string channels;
  for (const absl::string_view each : absl::StrSplit(message, ", ")) {
    const std::vector<std::string> words = absl::StrSplit(each, ' ');
    const bool counts = words.size() == 3 && words[2] == "channels";
    if (!counts || words[1] == "collnet") continue;
    absl::StrAppend(&channels, channels.empty() ? "" : ", ", words[0], " ",
                    words[1]);
  }
  if (!channels.empty()) facts.channels = channels;
}

// Reads "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read". Adds the first two
// names, and whether a network reads and writes GPU memory (GDRDMA).
void ReadTransport(absl::string_view message, NcclFacts& facts) {
  if (!absl::StartsWith(message, "Channel ")) return;
  const absl::string_view via = After(message, " via ");
  const std::vector<absl::string_view> names =
      absl::StrSplit(FirstWord(via), '/');
  if (via.empty() || names.size() < 2) return;
  facts.transports.insert(
      absl::StrCat(names[0], "/", names[1],
                   absl::StrContains(via, "GDRDMA") ? "/GDRDMA" : ""));
}

// Reads "NCCL_P2P_DISABLE set by environment to 1."
void ReadVariable(absl::string_view message, NcclFacts& facts) {
  absl::string_view value = After(message, " set by environment to ");
  const absl::string_view name = FirstWord(message);
  if (value.empty() || !absl::StartsWith(name, "NCCL_")) return;
  // NCCL writes a full stop after a number, but not after other values.
  const absl::string_view number = absl::StripSuffix(value, ".");
  int64_t ignored = 0;
  if (absl::SimpleAtoi(number, &ignored)) value = number;
  facts.environment[std::string(name)] = std::string(value);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> NcclLogEnvironment(
    const std::string& path) {
  return {{"NCCL_DEBUG", "INFO"},
          {"NCCL_DEBUG_FILE", path + ".%h.%p"},
          {"NCCL_DEBUG_SUBSYS", "INIT,ENV,TUNING,GRAPH,NET"}};
}

void ReadNcclFacts(absl::string_view log, NcclFacts& facts) {
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    // "NCCL version mismatch with remote peer" does not give the version.
    const absl::string_view version = After(line, "NCCL version ");
    if (!version.empty() && absl::ascii_isdigit(version.front())) {
      facts.version = std::string(FirstWord(version));
    }
    const absl::string_view message = After(line, " NCCL INFO ");
    ReadWord(message, "Using network ", facts.network);
    ReadChannels(message, facts);
    ReadTransport(message, facts);
    ReadVariable(message, facts);
    const absl::string_view pairs = After(message, "isAllDirectP2p ");
    if (!pairs.empty()) {
      facts.p2p = absl::StartsWith(pairs, "1") ? "all pairs" : "not all";
    }
    if (absl::StartsWith(message, "NVLS multicast support is ")) {
      const bool none = absl::StrContains(message, "is not available");
      facts.nvls = none ? "not available" : "available";
    }
  }
}

NcclChoice ReadNcclChoice(absl::string_view log) {
  NcclChoice choice;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    // "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}", or
    // "AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R nchannels 2
    // nthreads 512 nWorks 1". Before NCCL 2.23, names are numbers.
    const absl::string_view how = After(line, " Bytes -> ");
    if (how.empty()) continue;
    choice = {};
    ReadWord(how, "Algo ", choice.algorithm);
    ReadWord(how, "Kernel ", choice.algorithm);
    ReadWord(how, " proto ", choice.protocol);
    ReadWord(how, " nchannels ", choice.channels);
    const absl::string_view range = After(how, "channel{Lo..Hi}={");
    const std::vector<absl::string_view> ends =
        absl::StrSplit(range.substr(0, range.find('}')), "..");
    int low = 0, high = 0;
    if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &low) &&
        absl::SimpleAtoi(ends[1], &high)) {
      choice.channels = absl::StrCat(high - low + 1);
    }
  }
  return choice;
}

}  // namespace lockstep::benchmarks
