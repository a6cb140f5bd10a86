// lockstep_protocol.py passes its own tests, and it and C++ read each other's
// files.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
TEST(LockstepProtocolTest, PassesInPython) {
  RunPythonTest("numpy", "conformance/protocol/lockstep_protocol_test.py",
                /*deadline_seconds=*/55);
}

template <typename T>
NamedTensor Tensor(std::vector<int64_t> shape, const std::vector<T>& values) {
  NamedTensor tensor = {kDataTypeOf<T>, std::move(shape), {}};
  const auto bytes = std::as_bytes(std::span(values));
  tensor.data.assign(bytes.begin(), bytes.end());
  return tensor;
}

// No field has its default, as far as that goes.
Case Example() {
  Case c;
  c.name = "é \"quoted\"";
  c.model = "one's own";
  c.batch_norm = "local";
  c.unused = {"u"};
  c.frozen = {"W1"};
  c.dtype = "bfloat16";
  c.learning_rate = 0.1;
  c.momentum = 0.9;
  c.weight_decay = 1e-4;
  c.batch_sizes = {4, 0, 3};
  c.accumulate = 2;
  c.epochs = 3;
  c.shuffle = true;
  c.seed = std::numeric_limits<int64_t>::max();
  c.resume = true;
  c.stop_after = 5;
  c.evaluate = true;
  c.write_gradients = {1, 2};
  c.write_state = {12};
  return c;
}

CaseFiles Files() {
  CaseFiles files;
  files.weights.tensors = {
      {"W1", Tensor<float>({2, 2}, {1, -2, 1e-40f, 3e38f})},
      {"bn.num_batches_tracked", Tensor<int64_t>({}, {7})},
      {"empty", Tensor<float>({0, 3}, {})},
      {"u", Tensor<float>({4}, {0, 1, 2, 3})}};
  for (const char* part : {"train", "test"}) {
    files.data.tensors[absl::StrCat(part, ".images")] =
        Tensor<float>({1, 1, 28, 28}, std::vector<float>(784, 0.5f));
    files.data.tensors[absl::StrCat(part, ".labels")] =
        Tensor<int64_t>({1}, {3});
  }
  return files;
}

// Of every type that numpy has too.
Safetensors Types() {
  Safetensors content;
  content.tensors = {{"f64", Tensor<double>({1}, {1e-300})},
                     {"f32", Tensor<float>({1}, {-0.0f})},
                     {"f16", Tensor<Float16>({1}, {{0x7e01}})},
                     {"i32", Tensor<int32_t>({}, {-5})},
                     {"i64", Tensor<int64_t>({2, 1}, {1, -1})},
                     {"u8", Tensor<uint8_t>({3}, {0, 255, 7})}};
  return content;
}

class PythonAgreementTest : public testing::Test {
 protected:
  // What Python wrote after it read what C++ wrote is in output_ then.
  void SetUp() override {
    const std::string folder =
        absl::StrCat(testing::TempDir(), "/python_agreement");
    std::filesystem::remove_all(folder);
    const std::string input = folder + "/case";
    output_ = folder + "/output";
    std::filesystem::create_directories(input);
    std::filesystem::create_directories(output_);
    ASSERT_THAT(WriteCaseFolder(input, Example(), Files()), IsOk());
    ASSERT_THAT(WriteSafetensors(input + "/types", Types()), IsOk());
    RunPythonTest("numpy",
                  absl::StrCat("conformance/protocol/python_agreement.py ",
                               input, " ", output_),
                  /*deadline_seconds=*/55);
  }

  std::string output_;
};

TEST_F(PythonAgreementTest, PythonReadsTheCase) {
  const auto text = ReadFile(output_ + "/read.json");
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(ParseCase(*text, "read.json"), IsOkAndHolds(Example()));
  EXPECT_THAT(ReadSafetensors(output_ + "/weights"),
              IsOkAndHolds(Files().weights));
  EXPECT_THAT(ReadSafetensors(output_ + "/types"), IsOkAndHolds(Types()));
}

TEST_F(PythonAgreementTest, CppReadsTheOutput) {
  const auto output = ReadRankOutput(output_, 1);
  ASSERT_THAT(output, IsOk());
  EXPECT_EQ(output->world_size, 3);
  EXPECT_EQ(output->software, "numpy é \"1\"");
  ASSERT_EQ(output->steps.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(output->steps[i].epoch, static_cast<int64_t>(i));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(output->steps[0].loss, 0.1);
  EXPECT_THAT(output->steps[0].indices, IsEmpty());
  EXPECT_TRUE(std::isnan(*output->steps[1].loss));
  EXPECT_THAT(output->steps[2].indices, ElementsAre(2, 3));
  EXPECT_EQ(output->steps[2].loss, kInfinity);
  EXPECT_EQ(output->steps[3].loss, -kInfinity);
  EXPECT_EQ(output->steps[4].loss, std::nullopt);
  EXPECT_EQ(output->steps[5].loss, 1e-300);
  EXPECT_EQ(output->steps[6].loss, 7);
  ASSERT_TRUE(output->evaluation.has_value());
  EXPECT_THAT(output->evaluation->indices, ElementsAre(4, 5));
  EXPECT_EQ(output->evaluation->loss, 0.5);
  EXPECT_TRUE(std::isnan(output->evaluation->accuracy));
  EXPECT_EQ(output->evaluation->count, 6);
  // As bytes, in which NaN equals NaN and 0 is not -0.
  const NamedTensors want = {
      {"gradient.1/W1",
       Tensor<float>({2, 2}, {0.5f, -0.0f, std::nanf(""), 3e38f})},
      {"parameter.12/W1", Tensor<double>({2, 2}, {1, 2, 3, 4})},
      {"buffer.12/bn.num_batches_tracked", Tensor<int64_t>({}, {9})}};
  EXPECT_EQ(output->tensors, want);
}

TEST_F(PythonAgreementTest, CppReadsThatACaseIsNotSupported) {
  const auto output = ReadRankOutput(output_, 2);
  ASSERT_THAT(output, IsOk());
  EXPECT_EQ(output->unsupported, "there is no \"bfloat16\", é\n");
}

}  // namespace
}  // namespace lockstep
