// How ranks that do not know each other yet find each other.
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

// A meeting place for one run. Not thread safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  virtual int rank() const = 0;        // In [0, world_size()).
  virtual int world_size() const = 0;  // At least 1.
  // The address, as a number, from which this host reaches rank 0's; "" if it
  // is not known.
  virtual std::string own_address() const { return "127.0.0.1"; }

  // Publishes `blob` (any bytes, up to kMaxBlobBytes) and returns every rank's
  // blob, in rank order, once all are there. The k-th call of each rank meets
  // the k-th call of the others. Errors: kDeadlineExceeded names the ranks that
  // did not come; kUnavailable names one that died; kAlreadyExists if two live
  // processes claim one rank; kInvalidArgument if ranks disagree on the world
  // size, or a blob is too large. The first error of one rank is what the
  // others get, too, at once, and what every later Exchange returns.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) = 0;
};

// kInvalidArgument unless world_size is in [1, kLargestWorldSize] and rank in
// [0, world_size).
absl::Status CheckRank(int rank, int world_size);

// kInvalidArgument, naming the rank, for more than kMaxBlobBytes.
absl::Status CheckBlob(int rank, absl::string_view blob);

// Exchanges what each rank has to say, or why it cannot go on: then every rank
// gets the error of the lowest such rank, "rank 1 cannot join: ...", and none
// waits for it. Other errors: Exchange's.
absl::StatusOr<std::vector<std::string>> ExchangeResults(
    Rendezvous& rendezvous, const absl::StatusOr<std::string>& mine);

struct FileRendezvousOptions {
  std::string path;  // Created if absent; all ranks name the same file.
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
  // Whether the file is in a folder of its own, TemporaryFolder::OpenShared.
  bool own_folder = false;
};

// Rendezvous through a file on one host: no port to clash, safe in a sandbox.
// Opens (and creates) the file. The path may be /proc/<pid>/fd/<n> of a memfd.
//
// Earlier runs: a rank that comes to a file whose writers have all ended
// empties it, unless one of them wrote after this process started and so
// belongs to this run. A rank that died before a later one even started is thus
// taken for an earlier run's: it is then reported at the deadline and not at
// once. A path is for one run at a time, and for processes that see each
// other's numbers (one pid namespace).
//
// Rank 0 removes the file once all ranks have met; if they never do, the last
// to go removes it. What is not reached by its own name (a memfd, a symbolic
// link) is emptied, once nobody takes part any more, and not removed.
//
// A path serves one meeting after the other: who comes when all ranks have come
// to a meeting goes to the next, also while some still are at the last. The
// world size may be another then.
//
// Errors: kInvalidArgument for a rank outside [0, world_size) or a path that is
// not a regular file; those of TemporaryFolder::OpenShared; the file system's,
// with the path. Exchange also returns kDataLoss if the file holds something
// else than a rendezvous: it is then left as it is.
absl::StatusOr<std::unique_ptr<Rendezvous>> OpenFileRendezvous(
    const FileRendezvousOptions& options);

struct TcpRendezvousOptions {
  // Rank 0's host, by name or number, the same for all ranks. Rank 0 listens at
  // this address and no other.
  std::string address = "127.0.0.1";
  int port = 0;  // In [1, 65535]; or for rank 0 also 0, one that is free.
  // Only ranks that show that they know it can join. "" lets in any process
  // that can connect, and so is for loopback addresses only.
  std::string token;
  // Where rank 0 listens in place of `address`, if not "": "0.0.0.0" or "::"
  // for all addresses of the host.
  std::string listen_address;
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // For each Exchange.
  // Receives one line on whom the rank waits for, such as "rank 1 waits for
  // rank 0 at host0:29400": at once, and again every `tell_every`. Called by
  // the thread that opens the rendezvous and exchanges.
  std::function<void(const std::string& line)> tell = {};
  absl::Duration tell_every = absl::Seconds(10);
  Resolver resolver = Resolve;
};

// Rendezvous over TCP, for ranks on several hosts.
//
// Rank 0 serves the others from a thread that ends with the object: before
// that, it hands over what they have not received yet, for at most a
// second. A rank that comes before rank 0 listens waits for it.
//
// A rank that ends is reported at once; one that
// stops, or whose host disappears, at the deadline. What strangers send changes
// nothing for the ranks, but to make one that is joining try again. Messages
// name the address and the port.
//
// An Exchange returns within its timeout, and at most a second after it. Open
// looks the address up and asks a resolver that cannot answer again, up to the
// timeout; what Open needed is taken off the first Exchange's time.
//
// Errors of Exchange, besides those of Rendezvous: kUnauthenticated if the
// token is not rank 0's; kDataLoss or kFailedPrecondition if what listens there
// does not speak this protocol, or another version; kDeadlineExceeded if rank 0
// does not answer; kUnavailable if it is gone.
class TcpRendezvous : public Rendezvous {
 public:
  // Rank 0 listens when this returns. Errors: kInvalidArgument for a rank,
  // port or address that makes no sense, or if there is no token and the
  // address is not loopback; kNotFound, at once, for a host name that does not
  // resolve; kDeadlineExceeded if the resolver does not answer; the system's,
  // with the port, if rank 0 cannot listen there, as when the port is taken;
  // kUnimplemented if this was built without OpenSSL.
  static absl::StatusOr<std::unique_ptr<TcpRendezvous>> Open(
      const TcpRendezvousOptions& options);

  // Where rank 0 listens.
  virtual int port() const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
