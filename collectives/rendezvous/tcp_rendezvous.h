// A rendezvous over TCP, for ranks on several hosts.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/rendezvous/sockets.h"

namespace lockstep {

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

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_
