// Runs the two sides of the TCP rendezvous on arbitrary input and checks their
// behaviour.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace lockstep {

struct ClientCheckResult {
  std::string wrong;  // The first violated promise; "" for none.
  // Whether the rank that had joined finished its round.
  bool finished = false;
  bool failed = false;  // Whether that rank got or found a failure.
};

// Checks two clients on bytes that the other ranks might send: one client that
// has just connected, and one of two ranks that has joined and waits for round
// 1. The first byte of the input is the size of the pieces in which the other
// bytes arrive. Promises checked: bytes that do not prove the token neither let
// the first client in nor make it send the blob it publishes. If the second
// client finishes a round, the blobs are those in the bytes, one for each rank.
// Pieces of any size have the same outcome as one piece.
ClientCheckResult CheckClient(std::span<const uint8_t> input);

// The action that a byte of the input selects. The bytes after it are its
// arguments, 0 after the end of the input. A session argument counts modulo the
// number of sessions. An odd "way" sends one byte at a time.
enum class ServerStep : uint8_t {
  kConnect,      // Opens a new session.
  kSend,         // Session, size, bytes: sends the bytes unchanged.
  kJoin,         // Session, rank, world size, way: joins with the token.
  kJoinAsOther,  // The same with another token.
  kPublish,      // Session, round, size, way: a blob of `size` bytes.
  kGiveUp,       // Session, milliseconds, way.
  kFail,         // Session, code, way.
  kLeave,        // Session, way.
  kDisconnect,   // Session.
  kWait,         // Tenths of a second.
  kStopReading,  // Session: stops reading what the server sends.
};
inline constexpr int kServerSteps = 11;
inline constexpr int kServerCheckWorldSize = 3;

struct ServerCheckResult {
  std::string wrong;  // The first violated promise; "" for none.
  int joined = 0;     // The number of sessions that the server let in.
  int denied = 0;     // The number of sessions that it denied.
  int results = 0;    // The number of blobs that it sent back.
  int failures = 0;   // The number of failures that it sent to ranks.
};

// Checks the server on the actions in `input`. Promises checked: a session that
// did not prove the token gets a greeting and at most a denial, and none of its
// actions makes the server send to another session. A rank gets only frames of
// the protocol, and for each round in turn the blobs that the ranks published
// in it, in rank order. The number of strangers is bounded.
//
// `tamper` may change what the server sends to a session; `joined` says whether
// the session was let in. Tests use it to show that the check detects a broken
// server.
ServerCheckResult CheckServer(
    std::span<const uint8_t> input,
    const std::function<void(bool joined, std::string& sent)>& tamper = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_CHECK_H_
