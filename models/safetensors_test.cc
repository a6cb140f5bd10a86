// Safetensors: round trips, foreign bytes, and damaged files.
#include "models/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Safetensors Example() {
  Safetensors content;
  content.metadata = {{"epoch", "3"}, {"name", "a \"quoted\" name"}};
  content.tensors["W1"] = {
      DataType::kFloat32, {2, 3}, BytesOf<float>({1, 2, 3, -4.5f, 0, 1e-30f})};
  content.tensors["count"] = {
      DataType::kInt64, {1}, BytesOf<int64_t>({1 << 30})};
  content.tensors["empty"] = {DataType::kFloat32, {0, 7}, {}};
  content.tensors["loss"] = {DataType::kFloat64, {}, BytesOf<double>({0.25})};
  return content;
}

// A file with this header and data.
std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return absl::StrCat(bytes, header, data);
}

std::string TempPath(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", name);
}

TEST(SafetensorsTest, ReadsBackWhatItWrote) {
  const std::string path = TempPath("round_trip.safetensors");
  for (const Safetensors& content : {Example(), Safetensors()}) {
    ASSERT_THAT(WriteSafetensors(path, content), IsOk());
    EXPECT_THAT(ReadSafetensors(path), IsOkAndHolds(content));
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  }
}

TEST(SafetensorsTest, ReadsAFileAsTheFormatDescribesIt) {
  const std::string file =
      File(R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
           R"("a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}   )",
           std::string("\x05\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 16));
  Safetensors want;
  want.tensors["a"] = {DataType::kInt64, {1}, BytesOf<int64_t>({5})};
  want.tensors["b"] = {DataType::kFloat32, {1, 2}, BytesOf<float>({1, 2})};
  EXPECT_THAT(ParseSafetensors(file, "f"), IsOkAndHolds(want));
}

TEST(SafetensorsTest, StartsDataAtAMultipleOfEightBytes) {
  const absl::StatusOr<std::string> bytes = SerializeSafetensors(Example());
  ASSERT_THAT(bytes, IsOk());
  uint64_t length = 0;
  std::memcpy(&length, bytes->data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
}

TEST(SafetensorsTest, RefusesATensorWhoseBytesDoNotFitItsShape) {
  Safetensors content = Example();
  content.tensors["W1"].shape = {7};
  EXPECT_THAT(SerializeSafetensors(content),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'W1'")));
}

TEST(SafetensorsTest, NamesAMissingFileAndAnUnwritableFolder) {
  EXPECT_THAT(ReadSafetensors("/nonexistent/w.safetensors"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/w.safetensors")));
  EXPECT_THAT(WriteSafetensors("/nonexistent/w.safetensors", Example()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/nonexistent/w.safetensors")));
  EXPECT_THAT(ReadSafetensors(testing::TempDir()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot read")));  // A folder.
}

struct BrokenHeader {
  std::string header;
  std::string message;
};

TEST(SafetensorsTest, NamesTheFileAndTheFaultOfABrokenHeader) {
  const BrokenHeader cases[] = {
      {"", "not JSON"},
      {"[]", "not JSON"},
      {"{\"a\":", "not JSON"},
      {R"({"__metadata__":[]})", "metadata"},
      {R"({"__metadata__":{"a":1}})", "metadata"},
      {R"({"a":3})", "'a' lacks"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "'a' lacks"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
       "malformed"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
       "malformed"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "malformed"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
       "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
       "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],)"
       R"("data_offsets":[0,0]}})",
       "does not fit"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],)"
       R"("data_offsets":[0,4]}})",
       "malformed"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "beyond"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})", "begin"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "begin"},
      {"{}", "accounts for 0"},
  };
  for (const BrokenHeader& c : cases) {
    EXPECT_THAT(ParseSafetensors(File(c.header, "1234"), "w.safetensors"),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(testing::StartsWith("w.safetensors: "),
                                        HasSubstr(c.message))))
        << c.header;
  }
}

TEST(SafetensorsTest, NamesATypeThatItDoesNotKnow) {
  EXPECT_THAT(
      ParseSafetensors(
          File(R"({"a":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}})",
               "1234"),
          "w"),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("F8_E5M2")));
}

TEST(SafetensorsTest, ShowsLittleOfALongName) {
  std::string name(99, 'n');
  for (int i = 0; i < 1000; ++i) name += "\u00e9";
  EXPECT_THAT(
      ParseSafetensors(File(absl::StrCat("{\"", name, "\":3}"), ""), "w"),
      StatusIs(absl::StatusCode::kDataLoss,
               absl::StrCat("w: tensor '", std::string(99, 'n'),
                            "...' lacks a dtype, shape or data_offsets")));
  EXPECT_THAT(ParseSafetensors(
                  File(absl::StrCat(R"({"a\u001b":{"dtype":")", name,
                                    R"(","shape":[4],"data_offsets":[0,4]}})"),
                       "1234"),
                  "w"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       testing::AllOf(
                           HasSubstr(R"('a\033' has type nnn)"),
                           testing::EndsWith("n..., which this cannot read"))));
}

TEST(SafetensorsTest, RejectsEveryTruncationAndAnyTrailingByte) {
  const absl::StatusOr<std::string> bytes = SerializeSafetensors(Example());
  ASSERT_THAT(bytes, IsOk());
  for (size_t size = 0; size < bytes->size(); ++size) {
    EXPECT_THAT(ParseSafetensors(bytes->substr(0, size), "w"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("w: ")))
        << size;
  }
  EXPECT_FALSE(ParseSafetensors(*bytes + "x", "w").ok());
}

// What a damaged byte may do is an error or other content; never more.
TEST(SafetensorsTest, SurvivesEveryFlippedBitAndEveryByteOfJson) {
  const absl::StatusOr<std::string> bytes = SerializeSafetensors(Example());
  ASSERT_THAT(bytes, IsOk());
  int rejected = 0;
  for (size_t i = 0; i < bytes->size(); ++i) {
    std::string values("\0 \"-09[{},", 10);
    for (int bit = 0; bit < 8; ++bit) {
      values.push_back(static_cast<char>((*bytes)[i] ^ (1 << bit)));
    }
    for (const char value : values) {
      std::string damaged = *bytes;
      damaged[i] = value;
      rejected += ParseSafetensors(damaged, "w").ok() ? 0 : 1;
    }
  }
  EXPECT_GT(rejected, 1000);
}

}  // namespace
}  // namespace lockstep
