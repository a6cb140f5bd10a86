#include "collectives/tcp/tcp_mesh.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "collectives/host/message_member.h"
#include "collectives/rendezvous/protocol.h"
#include "collectives/rendezvous/rendezvous_sessions.h"
#include "collectives/rendezvous/sockets.h"

namespace lockstep {
namespace {

// The header of every message. Plain old data.
struct WireHeader {
  int32_t kind = 0;       // A ControlMessage::Kind, or one of the two below.
  uint32_t size = 0;      // Bytes of the body.
  uint64_t number = 0;    // For control messages.
  uint64_t released = 0;  // Pieces of the receiver that the sender released.
};
constexpr int32_t kPiece = 100;
constexpr int32_t kCredit = 101;  // Carries only `released`.

// The space for a header before its slot. It keeps the slot aligned.
constexpr size_t kHeaderRoom = 64;
static_assert(sizeof(WireHeader) <= kHeaderRoom);

// Holds many small messages, which arrive together.
constexpr size_t kInboxBytes = 8 << 10;
static_assert(kInboxBytes >= sizeof(WireHeader) + ControlMessage::kMaxBody);

// The most messages of one system call.
constexpr int kMostParts = 8;

// Longer than a message between ranks of one host takes, so that a rank does
// not yield its core while one is under way.
constexpr std::chrono::microseconds kSpinFor(50);

// The time between two attempts to connect to a host that does not answer.
constexpr std::chrono::milliseconds kRetryAfter(100);

constexpr size_t kGreetingBytes = kFrameHeaderBytes + kNonceBytes;
constexpr size_t kJoinFrameBytes = kFrameHeaderBytes + kJoinBytes;
constexpr size_t kWelcomeBytes = kFrameHeaderBytes + kProofBytes;

// Returns whether the kernel's error means that a process closed its end. A
// rank that leaves says so first, so a process that closed its end without a
// message has ended.
bool IsEndOfProcess(int error) {
  return error == 0 || error == ECONNRESET || error == EPIPE;
}

// Sends all bytes at once. For a connection on which no bytes wait, so that
// they fit.
bool SendWhole(const OwnedFd& socket, absl::string_view bytes) {
  return SendSome(socket, bytes).value_or(0) == bytes.size();
}

// Reads up to the end of the expected frame and no further: bytes after the
// handshake are for another reader. Returns none if the frame is not complete.
absl::StatusOr<std::optional<Frame>> NextFrame(const OwnedFd& socket,
                                               FrameReader& reader,
                                               size_t& missing) {
  char buffer[kJoinFrameBytes];
  const std::optional<size_t> size =
      ReceiveSome(socket, std::span(buffer, std::min(missing, sizeof(buffer))));
  if (!size.has_value())
    return absl::UnavailableError("it closed the connection");
  reader.Append(absl::string_view(buffer, *size));
  missing -= *size;
  return reader.Next();
}

}  // namespace

absl::string_view TcpMesh::Outgoing::bytes() const {
  if (slot.empty()) return text;
  return {reinterpret_cast<const char*>(slot.data()), slot.size()};
}

TcpMesh::TcpMesh(RankClaim self, std::vector<TcpEndpoint> endpoints,
                 std::string secret, OwnedFd listener, int64_t slot_bytes)
    : self_(self),
      endpoints_(std::move(endpoints)),
      secret_(std::move(secret)),
      slot_bytes_(slot_bytes),
      listener_(std::move(listener)),
      links_(endpoints_.size()) {
  for (Link& each : links_) each.retry_at = Clock::now();
}

bool TcpMesh::AwaitsRanks() const {
  return std::any_of(
      links_.begin() + self_.rank + 1, links_.end(),
      [](const Link& each) { return each.stage == Stage::kAbsent; });
}

// Connecting.

// Accepts connections. One look accepts at most kMaxStrangers, however many
// wait.
void TcpMesh::AcceptAll() {
  for (int i = 0; i < kMaxStrangers; ++i) {
    absl::StatusOr<std::optional<OwnedFd>> socket = Accept(listener_);
    // No descriptors are left: the oldest stranger, which has not joined, gives
    // one back.
    const bool full = !socket.ok() || pending_connections_.size() >=
                                          kMaxStrangers + links_.size();
    if (full && pending_connections_.empty()) {
      return error_.Update(absl::Status(
          socket.status().code(), absl::StrCat("cannot take connections: ",
                                               socket.status().message())));
    }
    if (full) pending_connections_.pop_front();
    if (!socket.ok() || !socket->has_value()) return;
    const absl::StatusOr<Nonce> nonce = NewNonce();
    if (!nonce.ok()) return error_.Update(nonce.status());
    PendingConnection& stranger =
        pending_connections_.emplace_back(PendingConnection{
            *std::move(*socket), Handshake(FrameKinds(FrameKind::kJoin)),
            Clock::now()});
    stranger.handshake.nonce = *nonce;
    stranger.handshake.missing = kJoinFrameBytes;
    if (!SendWhole(stranger.socket, EncodeFrame(GreetingFrame(*nonce)))) {
      pending_connections_.pop_back();
    }
  }
}

bool TcpMesh::ReceiveHandshake(PendingConnection& stranger) {
  const absl::StatusOr<std::optional<Frame>> frame = NextFrame(
      stranger.socket, stranger.handshake.reader, stranger.handshake.missing);
  if (!frame.ok()) return false;
  if (!frame->has_value()) return true;
  if (!JoinKnowsToken(secret_, stranger.handshake.nonce, **frame)) {
    SendWhole(stranger.socket,
              EncodeFrame({FrameKind::kDenied, 0, 0, std::string()}));
    return false;
  }
  Admit(stranger, **frame);
  return false;  // Its socket is a link's now, or unwanted.
}

bool TcpMesh::Admit(PendingConnection& stranger, const Frame& join) {
  const RankClaim claim = ClaimOfJoin(join);
  if (claim.world_size != self_.world_size || claim.rank <= self_.rank ||
      claim.rank >= static_cast<int32_t>(links_.size()) ||
      link(claim.rank).stage != Stage::kAbsent ||
      !SendWhole(stranger.socket,
                 EncodeFrame(WelcomeFrame(secret_, stranger.handshake.nonce,
                                          join, self_.pid)))) {
    return false;
  }
  Open(link(claim.rank), std::move(stranger.socket));
  return true;
}

void TcpMesh::Connect(Link& link, int peer) {
  const TcpEndpoint& there = endpoints_[static_cast<size_t>(peer)];
  const absl::StatusOr<std::vector<SocketAddress>> addresses =
      Resolve(there.host, there.port);
  if (!addresses.ok()) return Retry(link, addresses.status().message());
  absl::StatusOr<OwnedFd> socket = BeginConnect(addresses->front());
  if (!socket.ok()) return Retry(link, socket.status().message());
  link.socket = *std::move(socket);
  link.stage = Stage::kConnecting;
  if (link.obstacle.empty()) link.obstacle = "no answer";
}

void TcpMesh::Retry(Link& link, absl::string_view obstacle) {
  link.socket.Close();
  link.handshake.reset();
  link.stage = Stage::kAbsent;
  link.obstacle = std::string(obstacle);
  link.retry_at = Clock::now() + kRetryAfter;
}

void TcpMesh::ContinueHandshake(Link& link, int peer) {
  if (link.stage == Stage::kConnecting) {
    const absl::Status connected = EndConnect(link.socket);
    if (absl::IsAborted(connected)) {  // Refused.
      // The rank listened when it published its address.
      return End(
          link,
          absl::StrCat("is gone (",
                       HostAndPort(endpoints_[static_cast<size_t>(peer)].host,
                                   endpoints_[static_cast<size_t>(peer)].port),
                       ": ", connected.message(), ")"));
    }
    if (!connected.ok()) return Retry(link, connected.message());
    link.stage = Stage::kJoining;
    link.handshake =
        std::make_unique<Handshake>(FrameKinds(FrameKind::kGreeting));
    link.handshake->missing = kGreetingBytes;
  }
  Handshake& handshake = *link.handshake;
  const absl::StatusOr<std::optional<Frame>> frame =
      NextFrame(link.socket, handshake.reader, handshake.missing);
  // The acceptor may have had too many strangers, for example.
  if (absl::IsUnavailable(frame.status())) {
    return Retry(link, frame.status().message());
  }
  if (!frame.ok()) {
    return End(link,
               absl::StrCat("does not listen at its address: the program there "
                            "sent ",
                            frame.status().message()));
  }
  if (!frame->has_value()) return;
  if ((*frame)->kind == FrameKind::kGreeting) {
    const absl::StatusOr<Nonce> nonce = NewNonce();
    if (!nonce.ok()) return error_.Update(nonce.status());
    handshake.nonce = NonceOfGreeting(**frame);
    handshake.join = JoinFrame(secret_, handshake.nonce, *nonce, self_);
    handshake.reader.Expect(
        FrameKinds(FrameKind::kWelcome, FrameKind::kDenied));
    handshake.missing = kWelcomeBytes;
    if (!SendWhole(link.socket, EncodeFrame(handshake.join))) {
      Retry(link, "it closed the connection");
    }
    return;
  }
  if ((*frame)->kind == FrameKind::kDenied ||
      !WelcomeKnowsToken(secret_, handshake.nonce, handshake.join, **frame)) {
    return End(link, "does not know the token");
  }
  Open(link, std::move(link.socket));
}

void TcpMesh::Open(Link& link, OwnedFd socket) {
  link.socket = std::move(socket);
  link.handshake.reset();
  link.stage = Stage::kOpen;
  link.obstacle.clear();
  link.inbox.resize(kInboxBytes);
  Flush(link);
}

void TcpMesh::End(Link& link, absl::string_view why) {
  link.stage = Stage::kEnded;
  link.socket.Close();
  link.out.clear();
  link.lost = std::string(why);
}

std::string TcpMesh::Lost(int peer) const { return link(peer).lost; }

std::string TcpMesh::Obstacle(int peer) const {
  if (link(peer).obstacle.empty()) return "";
  const TcpEndpoint& there = endpoints_[static_cast<size_t>(peer)];
  return absl::StrCat(": ", HostAndPort(there.host, there.port), ": ",
                      link(peer).obstacle);
}

// Polling.

void TcpMesh::Look(Clock::duration limit) {
  poll_results_.clear();
  poll_results_.push_back({listener_.get(), POLLIN, 0});
  for (const PendingConnection& stranger : pending_connections_) {
    poll_results_.push_back({stranger.socket.get(), POLLIN, 0});
  }
  for (const Link& each : links_) {
    // Messages in `out` cannot be sent before the link is open.
    const bool writes = each.stage == Stage::kConnecting ||
                        (each.stage == Stage::kOpen && !each.out.empty());
    poll_results_.push_back(
        {each.socket.get(),
         static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  const int64_t milliseconds =
      std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  poll(poll_results_.data(), poll_results_.size(),
       static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1000)));
  has_polled_ = true;
}

void TcpMesh::Idle(Clock::duration waited, bool may_spin,
                   Clock::duration limit) {
  if (may_spin && waited < kSpinFor) return;
  Look(limit);
}

void TcpMesh::Poll(Take take) {
  if (!has_polled_) Look(Clock::duration::zero());
  has_polled_ = false;
  const size_t first_link = 1 + pending_connections_.size();
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    Link& each = links_[peer];
    const short events = poll_results_[first_link + peer].revents;
    const int rank = static_cast<int>(peer);
    if (each.stage == Stage::kAbsent) {
      if (rank < self_.rank && Clock::now() >= each.retry_at) {
        Connect(each, rank);
      }
    } else if (events != 0 && each.stage == Stage::kOpen) {
      if ((events & POLLOUT) != 0) Flush(each);
      if ((events & ~POLLOUT) != 0) Receive(each, rank, take);
    } else if (events != 0 && each.stage != Stage::kEnded) {
      ContinueHandshake(each, rank);
    }
  }
  if (!listener_.open()) return;
  const Clock::time_point oldest =
      Clock::now() - absl::ToChronoNanoseconds(kHandshakeTimeout);
  size_t at = 0;
  std::erase_if(pending_connections_, [&](PendingConnection& stranger) {
    const short events = poll_results_[1 + at++].revents;
    return stranger.since < oldest ||
           (events != 0 && !ReceiveHandshake(stranger));
  });
  if ((poll_results_[0].revents & POLLIN) != 0) AcceptAll();
  if (AwaitsRanks()) return;
  listener_.Close();
  pending_connections_.clear();
}

// Messages.

std::string TcpMesh::Header(Link& link, int32_t kind, uint32_t size,
                            uint64_t number) {
  const WireHeader header = {kind, size, number, link.pieces_released};
  link.releases_told = link.pieces_released;
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

void TcpMesh::Post(const ControlMessage& message, std::span<const int> peers) {
  for (const int peer : peers) {
    Link& to = link(peer);
    std::string text = Header(to, static_cast<int32_t>(message.kind),
                              message.size, message.number);
    text.append(message.body.data(), message.size);
    Push(to, {std::move(text), {}});
  }
}

void TcpMesh::Push(Link& link, Outgoing outgoing) {
  if (link.mute != 0 || link.stage == Stage::kEnded) return;
  link.out.push_back(std::move(outgoing));
  if (link.stage == Stage::kOpen) Flush(link);
}

void TcpMesh::Flush(Link& link) {
  while (!link.out.empty()) {
    iovec parts[kMostParts];
    size_t count = 0;
    for (auto at = link.out.begin(); at != link.out.end(); ++at) {
      if (count == kMostParts) break;
      absl::string_view bytes = at->bytes();
      if (count == 0) bytes.remove_prefix(link.sent);
      parts[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t size = sendmsg(link.socket.get(), &message, MSG_NOSIGNAL);
    if (size < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      // Messages from the other rank may still wait to be received.
      link.mute = errno;
      link.out.clear();
      return;
    }
    link.sent += static_cast<size_t>(size);
    while (!link.out.empty() && link.sent >= link.out.front().bytes().size()) {
      link.sent -= link.out.front().bytes().size();
      link.out.pop_front();
    }
  }
}

void TcpMesh::Receive(Link& link, int peer, Take take) {
  while (true) {
    // Receives the rest of a piece, and the bytes behind it, at once.
    iovec parts[2] = {};
    if (link.missing > 0) {
      const auto index = link.pieces_received % kSlots;
      const auto rest = static_cast<size_t>(link.missing);
      parts[0] = {Slot(link, kSlots + index) +
                      static_cast<size_t>(link.sizes[index]) - rest,
                  rest};
    }
    parts[1] = {link.inbox.data() + link.held, link.inbox.size() - link.held};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t size = recvmsg(link.socket.get(), &message, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) {
      // The kernel reports an error once. A link that failed to send ends here.
      const int error = size == 0 ? link.mute : errno;
      return End(link,
                 IsEndOfProcess(error)
                     ? "died"
                     : absl::StrCat("is cut off (", std::strerror(error), ")"));
    }
    const int64_t of_piece = std::min<int64_t>(link.missing, size);
    link.missing -= of_piece;
    if (of_piece > 0 && link.missing == 0) ++link.pieces_received;
    link.held += static_cast<size_t>(size - of_piece);
    if (!Parse(link, peer, take)) return;
    if (static_cast<size_t>(size) < parts[0].iov_len + parts[1].iov_len) {
      return;  // No more bytes wait.
    }
  }
}

bool TcpMesh::Parse(Link& link, int peer, Take take) {
  absl::string_view bytes(link.inbox.data(), link.held);
  while (bytes.size() >= sizeof(WireHeader) && link.missing == 0) {
    WireHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    absl::string_view rest = bytes.substr(sizeof(header));
    const bool is_control = ControlMessage::Allows(header.kind, header.size);
    const bool is_credit = header.kind == kCredit && header.size == 0;
    if (header.released > link.pieces_sent ||
        !(is_control || is_credit ||
          (header.kind == kPiece && BeginPiece(link, header.size, rest)))) {
      End(link, "sent bytes that are not a message of this group");
      return false;
    }
    if (is_control && rest.size() < header.size) break;
    link.pieces_freed = std::max(link.pieces_freed, header.released);
    if (is_control) {
      ControlMessage message;
      message.kind = static_cast<ControlMessage::Kind>(header.kind);
      message.number = header.number;
      message.size = header.size;
      std::memcpy(message.body.data(), rest.data(), header.size);
      rest.remove_prefix(header.size);
      take(peer, message);
    }
    bytes = rest;
  }
  std::memmove(link.inbox.data(), bytes.data(), bytes.size());
  link.held = bytes.size();
  return true;
}

// Moves the bytes of a piece of `size` bytes that have arrived from the front
// of `bytes` to its slot.
bool TcpMesh::BeginPiece(Link& link, size_t size, absl::string_view& bytes) {
  if (size == 0 || static_cast<int64_t>(size) > slot_bytes_ ||
      link.pieces_received - link.pieces_released >= kSlots) {
    return false;
  }
  const auto index = link.pieces_received % kSlots;
  const size_t here = std::min(size, bytes.size());
  std::memcpy(Slot(link, kSlots + index), bytes.data(), here);
  bytes.remove_prefix(here);
  link.sizes[index] = static_cast<int64_t>(size);
  link.missing = static_cast<int64_t>(size - here);
  if (link.missing == 0) ++link.pieces_received;
  return true;
}

// Pieces.

std::byte* TcpMesh::Slot(Link& link, uint64_t index) {
  const size_t stride = kHeaderRoom + static_cast<size_t>(slot_bytes_);
  if (link.slots == nullptr) {
    link.slots.reset(new (kAlignment) std::byte[2 * kSlots * stride]);
  }
  return link.slots.get() + index * stride + kHeaderRoom;
}

std::optional<std::span<std::byte>> TcpMesh::PieceBuffer(int peer) {
  Link& to = link(peer);
  if (to.pieces_sent - to.pieces_freed >= kSlots) return std::nullopt;
  return std::span(Slot(to, to.pieces_sent % kSlots),
                   static_cast<size_t>(slot_bytes_));
}

void TcpMesh::Send(int peer, int64_t size) {
  Link& to = link(peer);
  std::byte* const slot = Slot(to, to.pieces_sent++ % kSlots);
  const std::string header = Header(to, kPiece, static_cast<uint32_t>(size), 0);
  std::byte* const begin = slot - header.size();
  std::memcpy(begin, header.data(), header.size());
  Push(to, {"", {begin, header.size() + static_cast<size_t>(size)}});
}

std::optional<std::span<const std::byte>> TcpMesh::Received(int peer) {
  Link& from = link(peer);
  if (from.pieces_released == from.pieces_received) return std::nullopt;
  const auto index = from.pieces_released % kSlots;
  return std::span<const std::byte>(Slot(from, kSlots + index),
                                    static_cast<size_t>(from.sizes[index]));
}

void TcpMesh::Release(int peer) {
  Link& from = link(peer);
  ++from.pieces_released;
  if (from.pieces_released - from.releases_told >= kSlots - kMaxPieces) {
    Push(from, {Header(from, kCredit, 0, 0), {}});
  }
}

bool TcpMesh::IsIdle() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& each) { return each.out.empty(); });
}

// Closes the connections. Once no byte waits for an acknowledgement, the kernel
// of the other end has all messages. Closing earlier could lose messages, if
// bytes have arrived here that were not read.
void TcpMesh::Leave(absl::Duration patience) {
  const auto holds = [this](Link& link) {
    if (link.stage != Stage::kOpen || link.mute != 0) return false;
    Flush(link);
    int unanswered = 0;
    ioctl(link.socket.get(), SIOCOUTQ, &unanswered);
    pollfd ended = {link.socket.get(), 0, 0};  // By the other end.
    return (!link.out.empty() || unanswered != 0) && poll(&ended, 1, 0) == 0;
  };
  // Looks at all links in turn: a silent one takes no time from the others.
  const Deadline deadline(patience);
  while (std::ranges::count_if(links_, holds) > 0 && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  links_.clear();
}

}  // namespace lockstep
