// Rendezvous over TCP, for ranks on several hosts.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

// For rank 0 to say which ranks are missing at the deadline.
inline constexpr absl::Duration kAnswerTimeout = absl::Seconds(1);

// For rank 0 to hand over, as it ends, what others have not received yet.
inline constexpr absl::Duration kHandOverTimeout = absl::Seconds(1);

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
};

// Rank 0 serves the others from a thread that ends with the object: before
// that, it hands over what they have not received yet, for at most
// kHandOverTimeout. A rank that comes before rank 0 listens waits for it.
//
// The first error of one rank is what the others get, too, at once, and what
// every later Exchange returns. A rank that ends is reported at once; one that
// stops, or whose host disappears, at the deadline. What strangers send changes
// nothing for the ranks, but to make one that is joining try again. Messages
// name the address and the port.
//
// An Exchange returns within its timeout, and at most kAnswerTimeout after it;
// but looking up a host name takes as long as the resolver is set up to wait.
//
// Errors of Exchange, besides those of Rendezvous: kUnauthenticated if the
// token is not rank 0's; kInvalidArgument if there is none and the address is
// not loopback; kDataLoss or kFailedPrecondition if what listens there does not
// speak this protocol, or another version; kDeadlineExceeded if rank 0 does not
// answer; kUnavailable if it is gone.
class TcpRendezvous : public Rendezvous {
 public:
  // Rank 0 listens when this returns. Errors: kInvalidArgument for a rank,
  // port or address that makes no sense, or rank 0 without a token on an
  // address that is not loopback; the system's, with the port, if rank 0 cannot
  // listen there, as when the port is taken; kUnimplemented if this was built
  // without OpenSSL.
  static absl::StatusOr<std::unique_ptr<TcpRendezvous>> Open(
      const TcpRendezvousOptions& options);

  // Where rank 0 listens.
  virtual int port() const = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_TCP_RENDEZVOUS_H_
