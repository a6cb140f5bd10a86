// Runs RendezvousClients on arbitrary input and checks what they do.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_FUZZ_CLIENT_CHECK_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_FUZZ_CLIENT_CHECK_H_

#include <cstdint>
#include <span>
#include <string>

namespace lockstep {

struct ClientCheckResult {
  std::string wrong;      // The first promise that was not kept; "" for none.
  bool finished = false;  // Whether the rank that had joined got its round.
  bool failed = false;    // Whether it was told, or found, a failure.
};

// The first byte is the size of the pieces in which the others reach two
// clients: one that has just connected, and one of two ranks that has joined
// and waits for round 1. Promises checked: nothing that does not show the token
// lets the first one in or makes it send what it publishes; a round that the
// second one finishes has the blobs that are in the bytes, one for each rank;
// pieces of any size have the same outcome as one.
ClientCheckResult CheckClient(std::span<const uint8_t> input);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_FUZZ_CLIENT_CHECK_H_
