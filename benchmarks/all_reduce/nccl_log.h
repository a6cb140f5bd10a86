// Reads NCCL's log (NCCL_DEBUG=INFO) for its version, its settings, and the
// algorithm, protocol and channels of its calls.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// The value of a field that a log does not state.
inline constexpr char kUnknown[] = "unknown";

// Returns the variables that make NCCL write a log with all that is read here.
// Each process writes its own file: `path`, followed by the host and process.
std::vector<std::pair<std::string, std::string>> NcclLogEnvironment(
    const std::string& path);

// Facts about a communicator. Each string is the last value in the log, or
// kUnknown.
struct NcclFacts {
  std::string version = kUnknown;   // "2.28.9+cuda13.0"
  std::string network = kUnknown;   // Between hosts: "Socket", "IB".
  std::string channels = kUnknown;  // "24 coll, 16 nvls, 32 p2p"
  std::string p2p = kUnknown;       // One host's GPUs: "all pairs", "not all".
  std::string nvls = kUnknown;      // "available", "not available"
  // The transports of connections: "P2P/CUMEM", "SHM/direct", "NET/Socket".
  std::set<std::string> transports = {};
  // The variables that NCCL has read, by name.
  std::map<std::string, std::string> environment = {};

  friend bool operator==(const NcclFacts&, const NcclFacts&) = default;
};

// The way in which NCCL made a call. All fields are kUnknown for calls that the
// log omits: calls of a single rank, sends, and receives.
struct NcclChoice {
  std::string algorithm = kUnknown;  // "RING", "NVLS", or a kernel's name.
  std::string protocol = kUnknown;   // "LL", "LL128", "SIMPLE"
  std::string channels = kUnknown;   // "24"

  friend bool operator==(const NcclChoice&, const NcclChoice&) = default;
};

// Adds the facts in `log`, which holds whole lines of any ranks' logs. Other
// lines are ignored.
void ReadNcclFacts(absl::string_view log, NcclFacts& facts);

// Returns the choice for the last call in these lines.
NcclChoice ReadNcclChoice(absl::string_view log);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_
