// Frames to bytes and back; no input or output.
#include "collectives/rendezvous/frame.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

constexpr absl::string_view kMagic = "LSRT";
constexpr uint32_t kLargestStatusCode = 16;

struct PayloadSizes {
  size_t min;
  size_t max;
};

// By the number of the kind.
constexpr PayloadSizes kPayloadSizes[] = {
    {0, 0},
    {kNonceBytes, kNonceBytes},
    {kJoinBytes, kJoinBytes},
    {kProofBytes, kProofBytes},
    {0, 0},
    {0, kMaxBlobBytes},
    {0, kMaxBlobBytes},
    {0, kMaxFailureBytes},
    {0, 0},
    {0, 0},
};

bool IsKind(uint8_t number) {
  return number >= 1 && number < std::size(kPayloadSizes);
}

absl::Status Wrong(absl::string_view what) { return absl::DataLossError(what); }

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  std::string bytes(kMagic);
  bytes += static_cast<char>(kFrameVersion);
  bytes += static_cast<char>(frame.kind);
  bytes.append(2, '\0');
  AppendLittleEndian(static_cast<uint32_t>(frame.rank), bytes);
  AppendLittleEndian(frame.number, bytes);
  AppendLittleEndian(static_cast<uint32_t>(frame.payload.size()), bytes);
  return bytes + frame.payload;
}

Frame FailureFrame(const absl::Status& failure) {
  Frame frame;
  frame.kind = FrameKind::kFailure;
  frame.number = static_cast<uint32_t>(failure.code());
  frame.payload = std::string(failure.message().substr(0, kMaxFailureBytes));
  return frame;
}

absl::Status DecodeFailure(const Frame& frame) {
  const absl::StatusCode code =
      frame.number >= 1 && frame.number <= kLargestStatusCode
          ? static_cast<absl::StatusCode>(frame.number)
          : absl::StatusCode::kUnknown;
  std::string message = frame.payload;
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); },
      '?');
  return absl::Status(code, message);
}

void FrameReader::Append(absl::string_view bytes) {
  // What was returned goes once it is most of what is held, so that the cost
  // of moving the rest stays linear.
  if (used_ >= bytes_.size() - used_) {
    bytes_.erase(0, used_);
    used_ = 0;
  }
  bytes_.append(bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  if (!error_.ok()) return error_;
  absl::StatusOr<std::optional<Frame>> frame = Parse();
  error_ = frame.status();
  return frame;
}

absl::StatusOr<std::optional<Frame>> FrameReader::Parse() {
  const absl::string_view bytes = absl::string_view(bytes_).substr(used_);
  const absl::string_view magic = bytes.substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size())) return Wrong("not a frame");
  if (bytes.size() > 4 && bytes[4] != static_cast<char>(kFrameVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", static_cast<unsigned char>(bytes[4]),
                     " of the protocol, and not ", kFrameVersion));
  }
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  const uint8_t kind = static_cast<uint8_t>(bytes[5]);
  if (!IsKind(kind) || bytes[6] != 0 || bytes[7] != 0) {
    return Wrong("a frame with a wrong header");
  }
  Frame frame;
  frame.kind = static_cast<FrameKind>(kind);
  if (!expected_.Has(frame.kind)) {
    return Wrong(absl::StrCat("a frame of kind ", kind, " out of turn"));
  }
  frame.rank = static_cast<int32_t>(LoadLittleEndian(bytes.substr(8)));
  frame.number = LoadLittleEndian(bytes.substr(12));
  const size_t size = LoadLittleEndian(bytes.substr(16));
  if (size < kPayloadSizes[kind].min || size > kPayloadSizes[kind].max) {
    return Wrong(
        absl::StrCat("a frame of kind ", kind, " with ", size, " bytes"));
  }
  if (bytes.size() < kFrameHeaderBytes + size) return std::nullopt;
  frame.payload = std::string(bytes.substr(kFrameHeaderBytes, size));
  used_ += kFrameHeaderBytes + size;
  return frame;
}

}  // namespace lockstep
