#include "models/io/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"
#include "models/io/safetensors_check.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

template <typename T>
NamedTensor TensorOf(std::vector<int64_t> shape, const std::vector<T>& values) {
  return NamedTensor::Of(std::move(shape), std::span(values));
}

Safetensors Example() {
  Safetensors content;
  content.metadata = {{"epoch", "3"}, {"name", "a \"quoted\" name"}};
  content.tensors["W1"] = TensorOf<float>({2, 3}, {1, 2, 3, -4.5f, 0, 1e-30f});
  content.tensors["count"] = TensorOf<int64_t>({1}, {1 << 30});
  content.tensors["empty"] = {DataType::kFloat32, {0, 7}, {}};
  content.tensors["loss"] = TensorOf<double>({}, {0.25});
  return content;
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

TEST(SafetensorsTest, HasNoValuesOfAnotherType) {
  const NamedTensor tensor = TensorOf<int32_t>({2}, {-1, 3});
  EXPECT_EQ(tensor.type, DataType::kInt32);
  EXPECT_THAT(tensor.Values<int32_t>(), ElementsAre(-1, 3));
  EXPECT_THAT(tensor.Values<float>(), ElementsAre());
}

TEST(SafetensorsTest, ReadsAFileAsTheFormatDescribesIt) {
  const std::string file = SafetensorsBytes(
      R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}   )",
      std::string("\x05\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 16));
  Safetensors want;
  want.tensors["a"] = TensorOf<int64_t>({1}, {5});
  want.tensors["b"] = TensorOf<float>({1, 2}, {1, 2});
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

TEST(SafetensorsTest, NamesTheFileAndTheFaultOfABrokenHeader) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "is not a safetensors file"},
      {"[]", "is not a safetensors file"},
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
  for (const auto& [header, message] : cases) {
    EXPECT_THAT(
        ParseSafetensors(SafetensorsBytes(header, "1234"), "w.safetensors"),
        StatusIs(absl::StatusCode::kDataLoss,
                 testing::AllOf(testing::StartsWith("w.safetensors: "),
                                HasSubstr(message))))
        << header;
  }
}

TEST(SafetensorsTest, NamesAnUnknownTypeAndShowsLittleOfALongName) {
  std::string name(99, 'n');
  for (int i = 0; i < 1000; ++i) name += "\u00e9";
  EXPECT_THAT(
      ParseSafetensors(SafetensorsBytes(absl::StrCat("{\"", name, "\":3}"), ""),
                       "w"),
      StatusIs(absl::StatusCode::kDataLoss,
               absl::StrCat("w: tensor '", std::string(99, 'n'),
                            "...' lacks a dtype, shape or data_offsets")));
  for (const auto& [type, end] :
       {std::pair<std::string, std::string>("F8_E5M2", "F8_E5M2"),
        {name, "n..."}}) {
    const std::string header =
        absl::StrCat(R"({"a\u001b":{"dtype":")", type,
                     R"(","shape":[4],"data_offsets":[0,4]}})");
    EXPECT_THAT(
        ParseSafetensors(SafetensorsBytes(header, "1234"), "w"),
        StatusIs(absl::StatusCode::kUnimplemented,
                 testing::AllOf(
                     HasSubstr(absl::StrCat(R"('a\033' has type )",
                                            type.substr(0, 3))),
                     testing::EndsWith(end + ", which is not supported"))));
  }
}

// Users may mistake text, a pickle or a zip for a safetensors file.
TEST(SafetensorsTest, SaysThatAFileIsNoneAtAll) {
  for (const std::string other :
       {"{\"report\": \"a file of JSON\"}", "\x80\x02}q\0U\5state_dict",
        "PK\3\4 archive/data.pkl"}) {
    EXPECT_THAT(
        ParseSafetensors(other + std::string(99, ' '), "w"),
        StatusIs(absl::StatusCode::kDataLoss, "w: is not a safetensors file"))
        << other;
  }
  const absl::StatusOr<std::string> bytes = SerializeSafetensors(Example());
  ASSERT_THAT(bytes, IsOk());
  EXPECT_THAT(ParseSafetensors(bytes->substr(0, 20), "w"),
              StatusIs(absl::StatusCode::kDataLoss,
                       testing::AllOf(HasSubstr("is cut off: its header has "),
                                      HasSubstr("the file has 20"))));
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

// A damaged byte leads to an error or to other content, and to nothing else.
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

// Tests of a model's tensors: their content, and tensors that do not match.

class ModelTensorsTest : public testing::Test {
 protected:
  ModelTensorsTest() {
    mean_ = buffers_.AddFloats("mean", {2});
    batches_ = buffers_.AddCounter("batches");
    variance_ = buffers_.AddFloats("variance", {2});
  }

  // Returns the tensors of a file of this model, with nonzero values
  // everywhere.
  NamedTensors Filled() {
    std::iota(parameters_.values().begin(), parameters_.values().end(), 1.0f);
    std::iota(buffers_.floats().begin(), buffers_.floats().end(), 10.0f);
    buffers_.counter(batches_) = 77;
    NamedTensors tensors = ValueTensors(parameters_);
    tensors.merge(BufferTensors(buffers_));
    return tensors;
  }

  void Clear() {
    std::fill(parameters_.values().begin(), parameters_.values().end(), 0.0f);
    std::fill(buffers_.floats().begin(), buffers_.floats().end(), 0.0f);
    buffers_.counter(batches_) = 0;
  }

  Parameters parameters_{{{"weight", {2, 3}}, {"bias", {2}}}};
  Buffers buffers_;
  int mean_ = 0;
  int batches_ = 0;
  int variance_ = 0;
};

TEST_F(ModelTensorsTest, NamesEveryValueGradientAndBufferAndLoadsThem) {
  Filled();
  std::iota(parameters_.gradients().begin(), parameters_.gradients().end(),
            -8.0f);
  const NamedTensors values = ValueTensors(parameters_);
  EXPECT_THAT(values.at("weight").Values<float>(),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values.at("weight").shape, ElementsAre(2, 3));
  EXPECT_THAT(values.at("bias").Values<float>(), ElementsAre(7, 8));
  const NamedTensors gradients = GradientTensors(parameters_);
  EXPECT_THAT(gradients.at("bias").Values<float>(), ElementsAre(-2, -1));
  const NamedTensors buffers = BufferTensors(buffers_);
  EXPECT_EQ(buffers.size(), 3u);
  EXPECT_THAT(buffers.at("mean").Values<float>(), ElementsAre(10, 11));
  EXPECT_THAT(buffers.at("variance").Values<float>(), ElementsAre(12, 13));
  EXPECT_EQ(buffers.at("batches").type, DataType::kInt64);
  EXPECT_TRUE(buffers.at("batches").shape.empty());
  EXPECT_THAT(buffers.at("batches").Values<int64_t>(), ElementsAre(77));

  const NamedTensors tensors = Filled();
  Clear();
  ASSERT_THAT(LoadTensors(tensors, "file", parameters_, buffers_), IsOk());
  EXPECT_THAT(parameters_.values(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(buffers_.value(mean_), ElementsAre(10, 11));
  EXPECT_THAT(buffers_.value(variance_), ElementsAre(12, 13));
  EXPECT_EQ(buffers_.counter(batches_), 77);
}

TEST_F(ModelTensorsTest, NamesTheTensorThatDoesNotFitAndLoadsNothing) {
  const NamedTensors good = Filled();
  Clear();
  const NamedTensor scalar = {
      DataType::kFloat32, {}, std::vector<std::byte>(4)};
  NamedTensors no_bias = good;
  no_bias.erase("bias");
  NamedTensors no_mean = good;
  no_mean.erase("mean");
  NamedTensors flat = good;
  flat["weight"].shape = {6};
  NamedTensors type = good;
  type["batches"] = scalar;
  NamedTensors negative = good;
  negative["batches"].data.assign(8, std::byte{0xff});
  NamedTensors last = good;
  last["batches"].data.assign(8, std::byte{0xff});
  last["batches"].data[7] = std::byte{0x7f};
  NamedTensors more = good;
  more["zzz\n"] = scalar;
  for (
      const auto& [tensors, message] :
      {std::pair(no_bias, "F: has no tensor 'bias'"),
       {no_mean, "F: has no tensor 'mean'"},
       {flat,
        "F: tensor 'weight' is float32 [6], but the model's is float32 [2, 3]"},
       {type, "F: tensor 'batches' is float32 [], but the model's is int64 []"},
       {negative, "F: tensor 'batches' is -1, which is not a count of batches"},
       {last,
        "F: tensor 'batches' is 9223372036854775807, which is not a count of "
        "batches"},
       {more, "F: tensor 'zzz\\n' is not in the model"}}) {
    EXPECT_THAT(LoadTensors(tensors, "F", parameters_, buffers_),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_THAT(parameters_.values(), Each(0.0f));
    EXPECT_THAT(buffers_.floats(), Each(0.0f));
    EXPECT_EQ(buffers_.counter(batches_), 0);
  }
}

// The fuzz check on the seeds and on mutations of them.

constexpr int kMutations = 5000;

TEST(SafetensorsFuzzTest, KeepsItsPromisesOnSeedsAndMutations) {
  const std::vector<std::string> seeds = SafetensorsSeeds();
  const auto accepts = [](const std::string& bytes) {
    bool ok = false;
    EXPECT_EQ(CheckSafetensors(bytes, ok), "");
    return ok;
  };
  EXPECT_EQ(seeds.size(), 8u);
  EXPECT_EQ(std::count_if(seeds.begin(), seeds.end(), accepts), 5);
  std::mt19937 random(17);
  int accepted = 0;
  for (int i = 0; i < kMutations && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    accepted += accepts(MutateSeed(seeds, random)) ? 1 : 0;
  }
  // Both outcomes must occur often: otherwise the mutations would test only
  // rejection or only acceptance.
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

// The control: each of these messages breaks one rule.
TEST(CheckMessageTest, FindsOutABadMessage) {
  const auto wrong = [](const std::string& message) {
    return CheckMessage(absl::DataLossError(message), "f");
  };
  EXPECT_EQ(wrong("f: is odd"), "");
  EXPECT_NE(wrong("is odd"), "");
  EXPECT_NE(wrong("f: is\nodd"), "");
  EXPECT_NE(wrong("f: is \x1b[1modd"), "");
  EXPECT_NE(wrong(absl::StrCat("f: ", std::string(1000, 'x'))), "");
}

}  // namespace
}  // namespace lockstep
