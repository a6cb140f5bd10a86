// What NCCL's log (NCCL_DEBUG=INFO) says of how it goes about its calls.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// What a log does not say.
inline constexpr char kUnknown[] = "unknown";

// Variables that make NCCL write a log with all that is read here, to a file
// for each process: `path`, followed by the host and the process.
std::vector<std::pair<std::string, std::string>> NcclLogEnvironment(
    const std::string& path);

// Of a communicator; each is the last that was said, or kUnknown.
struct NcclFacts {
  std::string version = kUnknown;   // "2.28.9+cuda13.0"
  std::string network = kUnknown;   // "Socket", "IB": between hosts.
  std::string channels = kUnknown;  // "24 coll, 16 nvls, 32 p2p"
  std::string p2p = kUnknown;   // Of GPUs of a host: "all pairs", "not all".
  std::string nvls = kUnknown;  // "available", "not available"
  // What connections go by: "P2P/CUMEM", "SHM/direct", "NET/Socket".
  std::set<std::string> transports = {};
  // Variables that it has read, by name.
  std::map<std::string, std::string> environment = {};

  friend bool operator==(const NcclFacts&, const NcclFacts&) = default;
};

// How NCCL went about a call; kUnknown for calls that its log leaves out: those
// of one rank, and sends and receives.
struct NcclChoice {
  std::string algorithm = kUnknown;  // "RING", "NVLS", or a kernel's name.
  std::string protocol = kUnknown;   // "LL", "LL128", "SIMPLE"
  std::string channels = kUnknown;   // "24"

  friend bool operator==(const NcclChoice&, const NcclChoice&) = default;
};

// Adds what whole lines of any rank's log say. Other lines may be there.
void ReadNcclFacts(absl::string_view log, NcclFacts& facts);

// The last call in these lines.
NcclChoice ReadNcclChoice(absl::string_view log);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_LOG_H_
