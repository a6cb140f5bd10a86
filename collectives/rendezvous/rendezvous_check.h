// Runs the two sides of the TCP rendezvous on arbitrary input and checks what
// they do.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_

#include <cstdint>
#include <functional>
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

// What a byte of the input makes happen; bytes that follow are its arguments,
// 0 where the input has ended. A session is one of those that there are, by its
// number modulo how many there are.
enum class ServerStep : uint8_t {
  kConnect,      // A new session.
  kSend,         // Session, size, bytes: sends them as they are.
  kJoin,         // Session, rank, world size, way: joins with the token.
  kJoinAsOther,  // The same with another token.
  kPublish,      // Session, round, size, way: a blob of so many bytes.
  kGiveUp,       // Session, milliseconds, way.
  kFail,         // Session, code, way.
  kLeave,        // Session, way.
  kDisconnect,   // Session.
  kWait,         // Tenths of a second.
  kStopReading,  // Session: takes nothing any more from what it is sent.
};
inline constexpr int kServerSteps = 11;
inline constexpr int kServerCheckWorldSize = 3;

// "way": odd for one byte at a time.
struct ServerCheckResult {
  std::string wrong;  // The first promise that was not kept; "" for none.
  int joined = 0;     // Sessions that the server let in.
  int denied = 0;     // That it did not.
  int results = 0;    // Blobs that came back.
  int failures = 0;   // Failures that ranks were told.
};

// Promises checked: a session that did not show the token gets a greeting and
// at most a denial, and nothing that it does sends anything to another session;
// a rank gets frames of the protocol alone, and for each round in turn what the
// ranks published in it, in rank order; strangers are bounded in number.
//
// `tamper` may change what the server sends to a session, given whether that
// was let in: with it, tests show that a broken server is found out.
ServerCheckResult CheckServer(
    std::span<const uint8_t> input,
    const std::function<void(bool joined, std::string& sent)>& tamper = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_
