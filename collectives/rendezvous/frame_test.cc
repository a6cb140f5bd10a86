// Frames to bytes and back, and what is refused.
#include "collectives/rendezvous/frame.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr FrameKinds kAll(FrameKind::kGreeting, FrameKind::kJoin,
                          FrameKind::kWelcome, FrameKind::kDenied,
                          FrameKind::kPublish, FrameKind::kResult,
                          FrameKind::kFailure, FrameKind::kGiveUp,
                          FrameKind::kLeave);

std::vector<Frame> OneOfEachKind() {
  return {{FrameKind::kGreeting, 0, 0, std::string(kNonceBytes, 'n')},
          {FrameKind::kJoin, 2, 3, std::string(kJoinBytes, 'j')},
          {FrameKind::kWelcome, 0, 77, std::string(kProofBytes, 'p')},
          {FrameKind::kDenied, 0, 0, ""},
          {FrameKind::kPublish, 0, 1, "a blob"},
          {FrameKind::kResult, 2, 1, std::string("\0\xff\n", 3)},
          {FrameKind::kFailure, 0, 14, "rank 1 died"},
          {FrameKind::kGiveUp, 0, 60000, ""},
          {FrameKind::kLeave, 0, 0, ""}};
}

// All frames of `bytes`, given to the reader in pieces of one size; an error
// ends them.
std::vector<Frame> ReadInPieces(absl::string_view bytes, size_t piece) {
  FrameReader reader(kAll);
  std::vector<Frame> frames;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    reader.Append(bytes.substr(at, piece));
    while (true) {
      const absl::StatusOr<std::optional<Frame>> frame = reader.Next();
      EXPECT_THAT(frame, IsOk());
      if (!frame.ok() || !frame->has_value()) break;
      frames.push_back(**frame);
    }
  }
  return frames;
}

TEST(FrameTest, HeaderIsAsDocumented) {
  EXPECT_EQ(EncodeFrame({FrameKind::kResult, 0x01020304, 0x0a0b0c0d, "blob"}),
            std::string("LSRT\x01\x06\0\0\x04\x03\x02\x01\x0d\x0c\x0b\x0a"
                        "\x04\0\0\0blob",
                        24));
}

TEST(FrameTest, EveryKindComesBackFromPiecesOfEverySize) {
  std::string bytes;
  for (const Frame& frame : OneOfEachKind()) bytes += EncodeFrame(frame);
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(ReadInPieces(bytes, piece), OneOfEachKind()) << piece;
  }
}

// Of each byte that may not be any other: refused as soon as it is there, and
// not before.
TEST(FrameTest, RefusesAnythingElseAtItsFirstByte) {
  const std::string frame = EncodeFrame({FrameKind::kPublish, 0, 1, "blob"});
  for (const size_t at : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = frame;
      bytes[at] = static_cast<char>(value);
      if (bytes == frame) continue;
      FrameReader reader{FrameKinds(FrameKind::kPublish)};
      reader.Append(bytes.substr(0, at));
      ASSERT_THAT(reader.Next(), IsOk());
      reader.Append(bytes.substr(at));
      const absl::StatusCode want = at == 4
                                        ? absl::StatusCode::kFailedPrecondition
                                        : absl::StatusCode::kDataLoss;
      ASSERT_EQ(reader.Next().status().code(), want) << at << " " << value;
      ASSERT_EQ(reader.Next().status().code(), want);  // It stays.
    }
  }
}

TEST(FrameTest, RefusesASizeThatTheKindDoesNotHaveByItsHeader) {
  for (const Frame& frame : OneOfEachKind()) {
    const bool any_size = frame.kind == FrameKind::kPublish ||
                          frame.kind == FrameKind::kResult ||
                          frame.kind == FrameKind::kFailure;
    const size_t max = frame.kind == FrameKind::kFailure ? kMaxFailureBytes
                       : any_size                        ? kMaxBlobBytes
                                                         : frame.payload.size();
    std::vector<uint32_t> wrong = {static_cast<uint32_t>(max + 1), 0x80000000,
                                   0xffffffff};
    if (!any_size && max > 0) wrong.push_back(static_cast<uint32_t>(max - 1));
    for (const uint32_t size : wrong) {
      std::string header = EncodeFrame(frame).substr(0, kFrameHeaderBytes);
      for (size_t i = 0; i < 4; ++i) {
        header[16 + i] = static_cast<char>(size >> 8 * i & 0xff);
      }
      FrameReader reader(kAll);
      reader.Append(header);
      EXPECT_THAT(reader.Next().status(),
                  StatusIs(absl::StatusCode::kDataLoss,
                           HasSubstr(absl::StrCat("with ", size, " bytes"))));
    }
    Frame largest = frame;
    largest.payload.resize(max, 'x');
    EXPECT_THAT(ReadInPieces(EncodeFrame(largest), 1000),
                testing::ElementsAre(largest));
  }
}

TEST(FrameTest, NamesTheVersionThatItDoesNotKnow) {
  FrameReader reader(kAll);
  reader.Append("LSRT\x07");
  EXPECT_THAT(reader.Next().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "version 7 of the protocol, and not 1"));
}

TEST(FrameTest, FailuresComeBackOnOneLine) {
  const absl::Status failure = absl::UnavailableError("rank 1\ndied");
  EXPECT_EQ(DecodeFailure(FailureFrame(failure)),
            absl::UnavailableError("rank 1?died"));
  const Frame long_one =
      FailureFrame(absl::UnavailableError(std::string(100000, 'x')));
  EXPECT_EQ(long_one.payload.size(), kMaxFailureBytes);
  for (const uint32_t code : {0u, 17u, 0xffffffffu}) {
    EXPECT_EQ(DecodeFailure({FrameKind::kFailure, 0, code, "what"}),
              absl::UnknownError("what"));
  }
}

}  // namespace
}  // namespace lockstep
