// The rendezvous: ranks that do not know each other's addresses find each
// other.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/sockets.h"

namespace lockstep {

inline constexpr size_t kMaxBlobBytes = 64 << 10;
inline constexpr int32_t kLargestWorldSize = 1 << 20;

// A meeting place for the ranks of one run. Not thread safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.
  // The address, as a number, from which this host reaches rank 0's host; "" if
  // unknown.
  virtual std::string own_address() const { return "127.0.0.1"; }

  // Publishes `blob` (any bytes, up to kMaxBlobBytes) and returns every rank's
  // blob, in rank order, once all are there. The k-th call of each rank meets
  // the k-th call of every other rank. Errors: kDeadlineExceeded, naming the
  // ranks that did not arrive; kUnavailable, naming a rank that died;
  // kAlreadyExists if two live processes claim one rank; kInvalidArgument if
  // ranks disagree on the world size, or a blob is too large. All ranks get the
  // first error of one rank at once, and every later Exchange returns it.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) = 0;
};

// Returns kInvalidArgument unless world_size is in [1, kLargestWorldSize] and
// rank in [0, world_size).
absl::Status CheckRank(int rank, int world_size);

// Returns kInvalidArgument, naming the rank, if `blob` has more than
// kMaxBlobBytes.
absl::Status CheckBlob(int rank, absl::string_view blob);

// Exchanges each rank's blob or its error. If any rank has an error, every rank
// returns the error of the lowest such rank, "rank 1 cannot join: ...", without
// waiting for that rank any longer. Other errors: Exchange's.
absl::StatusOr<std::vector<std::string>> ExchangeResults(
    Rendezvous& rendezvous, const absl::StatusOr<std::string>& mine);

struct FileRendezvousOptions {
  std::string path;  // Created if absent; must match on all ranks.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
  // Whether the file is in a folder of its own, TemporaryFolder::OpenShared.
  bool own_folder = false;
};

// Opens a rendezvous through a file on one host: no port that could be taken,
// safe in a sandbox. Creates the file if it is absent. The path may be
// /proc/<pid>/fd/<n> of a memfd.
//
// Earlier runs: a rank that opens a file whose writers have all ended empties
// it, unless one of them wrote after this process started and so belongs to
// this run. If a rank dies before a later one even starts, it is therefore
// taken for an earlier run's rank, and is reported at the deadline and not at
// once. A path serves one run at a time, and only processes that see each
// other's process numbers (one pid namespace).
//
// Rank 0 removes the file once all ranks have met. If they never meet, the last
// rank to leave removes it. A file that is not reached by its own name (a
// memfd, a symbolic link) is not removed, but emptied once no rank takes part
// any more.
//
// A path serves one meeting after another. A rank that arrives after all ranks
// have joined a meeting joins the next meeting, even if some ranks still take
// part in the previous one. The next meeting may have another world size.
//
// Errors: kInvalidArgument for a rank outside [0, world_size) or a path that is
// not a regular file; those of TemporaryFolder::OpenShared; the file system's,
// with the path. Exchange also returns kDataLoss, and leaves the file
// unchanged, if the file does not hold a rendezvous.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenFileRendezvous(
    const FileRendezvousOptions& options);

struct TcpRendezvousOptions {
  // Rank 0's host, by name or number, which must match on all ranks. Rank 0
  // listens at this address and no other.
  std::string address = "127.0.0.1";
  int port = 0;  // In [1, 65535]. Rank 0 may use 0: a free port.
  // A rank must prove that it knows the token to join. With "", any process
  // that can connect may join, so "" is for loopback addresses only.
  std::string token;
  // The address at which rank 0 listens, if not "", instead of `address`:
  // "0.0.0.0" or "::" for all addresses of the host.
  std::string listen_address;
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
  // Receives one line on which ranks this rank waits for, such as "rank 1 waits
  // for rank 0 at host0:29400": at once, and again every `tell_every`. Called
  // by the thread that opens the rendezvous and exchanges.
  std::function<void(const std::string& line)> tell = {};
  absl::Duration tell_every = absl::Seconds(10);
  Resolver resolver = Resolve;
};

// A rendezvous over TCP, for ranks on several hosts.
//
// Rank 0 serves the other ranks from a thread that ends with the object. Before
// it ends, the thread sends what the ranks have not received yet, for at most a
// second. A rank that starts before rank 0 listens waits for it.
//
// A rank that ends is reported at once. A rank that stops, or whose host
// disappears, is reported at the deadline. Data from strangers (connections
// that have not joined) has no effect on the ranks, except that a joining rank
// may have to try again. Messages name the address and the port.
//
// An Exchange returns at most a second after its timeout. Open looks up the
// address, and repeats the query if the resolver cannot answer, up to the
// timeout. The time that Open took is subtracted from the first Exchange's
// timeout.
//
// Errors of Exchange, besides those of Rendezvous: kUnauthenticated if the
// token is not rank 0's; kDataLoss or kFailedPrecondition if the server at that
// port does not speak this protocol, or speaks another version;
// kDeadlineExceeded if rank 0 does not answer; kUnavailable if rank 0 is gone.
class TcpRendezvous : public Rendezvous {
 public:
  // Opens the rendezvous; rank 0 listens when this returns. Errors:
  // kInvalidArgument for an invalid rank, port or address, or if there is no
  // token and the address is not loopback; kNotFound, at once, for a host name
  // that does not resolve; kDeadlineExceeded if the resolver does not answer;
  // the system's, with the port, if rank 0 cannot listen there, for example
  // because the port is taken; kUnimplemented if this was built without
  // OpenSSL.
  static absl::StatusOr<std::unique_ptr<TcpRendezvous>> Open(
      const TcpRendezvousOptions& options);

  // The port at which rank 0 listens.
  virtual int port() const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
