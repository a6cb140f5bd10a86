// Tests the files of cases and of ranks, right ones and every kind of wrong
// one. lockstep_protocol.py passes its own tests, and Python and C++ read each
// other's files.
#include <sys/stat.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/protocol_check.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep::conformance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <typename T>
NamedTensor Tensor(std::vector<int64_t> shape, const std::vector<T>& values) {
  return NamedTensor::Of<T>(std::move(shape), values);
}

RankOutput Example() {
  RankOutput output = ExampleRankOutput();
  output.tensors = {{"gradient.1/W1", Tensor<float>({2}, {0, 0})},
                    {"parameter.12/bn1.weight", Tensor<float>({}, {0})},
                    {"buffer.12/a/b", Tensor<int64_t>({1}, {0})}};
  return output;
}

RankOutput Unsupported() {
  return {.world_size = 2, .unsupported = "there is no \"bfloat16\"\nhere"};
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

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/rank_files");
    json_ = folder_ + "/rank1.json";
    tensors_ = folder_ + "/rank1.safetensors";
    Restore();
  }

  void Restore() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    ASSERT_THAT(WriteRankOutput(folder_, Example()), IsOk());
  }

  void ExpectDamaged(const std::string& path, const std::string& message) {
    EXPECT_THAT(ReadRankOutput(folder_, 1),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(testing::StartsWith(path + ": "),
                                        HasSubstr(message))));
  }

  std::string folder_;
  std::string json_;
  std::string tensors_;
};

TEST_F(FilesTest, ReadsBackWhatItWrote) {
  EXPECT_THAT(ReadRankOutput(folder_, 1), IsOkAndHolds(Example()));
  ASSERT_THAT(WriteRankOutput(folder_, Unsupported()), IsOk());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/rank0.safetensors"));
  EXPECT_THAT(ReadRankOutput(folder_, 0), IsOkAndHolds(Unsupported()));
}

TEST_F(FilesTest, DoesNotReadTheTensorsOfAnUnsupportedCase) {
  ASSERT_THAT(WriteRankOutput(folder_, Unsupported()), IsOk());
  std::ofstream(folder_ + "/rank0.safetensors") << "garbage";
  EXPECT_THAT(ReadRankOutput(folder_, 0), IsOkAndHolds(Unsupported()));
}

TEST_F(FilesTest, SaysWhatIsMissing) {
  EXPECT_THAT(ReadRankOutput(folder_, 2),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(folder_ + "/rank2.json")));
  EXPECT_THAT(
      ReadRankOutput(folder_ + "/none", 1),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none/rank1.json")));
  std::filesystem::remove(tensors_);
  ExpectDamaged(tensors_, "is missing");
}

TEST_F(FilesTest, RefusesAnotherRanksFile) {
  std::filesystem::rename(json_, folder_ + "/rank0.json");
  std::filesystem::rename(tensors_, folder_ + "/rank0.safetensors");
  EXPECT_THAT(ReadRankOutput(folder_, 0),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("/rank0.json: says that it is rank 1's")));
}

TEST_F(FilesTest, RefusesHalfAFile) {
  for (const std::string& path : {json_, tensors_}) {
    Restore();
    const uint64_t size = std::filesystem::file_size(path);
    for (const uint64_t kept : {uint64_t{0}, uint64_t{1}, size / 2, size - 2}) {
      std::filesystem::resize_file(path, kept);
      ExpectDamaged(path, "");
      Restore();
    }
  }
}

TEST_F(FilesTest, RefusesWhatIsNoFile) {
  for (const std::string& path : {json_, tensors_}) {
    Restore();
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    ExpectDamaged(path, "is not a regular file");
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    ExpectDamaged(path, "is not a regular file");
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    ExpectDamaged(path, "is not a regular file");
    std::filesystem::remove(path);
    std::ofstream(path).close();
    std::filesystem::resize_file(path, uint64_t{3} << 30);  // Sparse.
    ExpectDamaged(path, "has 3221225472 bytes; at most");
  }
}

TEST_F(FilesTest, RefusesTensorsOfOtherNamesAndTypes) {
  for (const char* name :
       {"W1", "gradients.1/W1", "gradient/W1", "gradient.1", "gradient.1/",
        "gradient.0/W1", "gradient.01/W1", "gradient.-1/W1", "gradient.1x/W1",
        "gradient./W1", "gradient.12345678901/W1", "/gradient.1", ""}) {
    RankOutput output = Example();
    output.tensors[name] = {DataType::kFloat32, {0}, {}};
    ASSERT_THAT(WriteRankOutput(folder_, output), IsOk());
    ExpectDamaged(tensors_, absl::StrCat("tensor '", name, "' is not named"));
  }
  const std::string header =
      R"({"gradient.1/W1":{"dtype":"F8_E5M2","shape":[0],)"
      R"("data_offsets":[0,0]}})";
  std::ofstream(tensors_) << static_cast<char>(header.size())
                          << std::string(7, '\0') << header;
  ExpectDamaged(tensors_, "F8_E5M2");
}

TEST_F(FilesTest, NamesTheFileThatCannotBeWritten) {
  EXPECT_THAT(WriteRankOutput(folder_ + "/none", Example()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/none/rank1.safetensors")));
}

TEST(LockstepProtocolTest, PassesInPython) {
  RunPythonTest("numpy", "conformance/protocol/lockstep_protocol_test.py",
                /*deadline_seconds=*/55);
}

TEST_F(FilesTest, ReadsBackTheCaseThatItWrote) {
  ASSERT_THAT(WriteCaseFolder(folder_, ExampleCase(), Files()), IsOk());
  const auto read = ReadCaseFolder(folder_);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->c, ExampleCase());
  EXPECT_EQ(read->files.weights, Files().weights);
  EXPECT_EQ(read->files.data, Files().data);
}

TEST_F(FilesTest, NamesTheFileOfACaseThatIsWrong) {
  for (const char* name :
       {"case.json", "weights.safetensors", "data.safetensors"}) {
    const std::string path = absl::StrCat(folder_, "/", name);
    ASSERT_THAT(WriteCaseFolder(folder_, ExampleCase(), Files()), IsOk());
    std::filesystem::resize_file(path, 7);
    EXPECT_THAT(ReadCaseFolder(folder_),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    std::filesystem::remove(path);
    EXPECT_THAT(ReadCaseFolder(folder_),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  }
  EXPECT_THAT(WriteCaseFolder(folder_ + "/none", ExampleCase(), Files()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder_)));
}

TEST(CaseEnvironmentTest, NamesTheVariableThatIsNotSet) {
  setenv("LOCKSTEP_CASE", "/a", 1);
  setenv("LOCKSTEP_OUTPUT", "/b", 1);
  const auto environment = ReadCaseEnvironment();
  ASSERT_THAT(environment, IsOk());
  EXPECT_EQ(environment->case_folder, "/a");
  EXPECT_EQ(environment->output_folder, "/b");
  setenv("LOCKSTEP_OUTPUT", "", 1);
  EXPECT_THAT(ReadCaseEnvironment(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("LOCKSTEP_OUTPUT is not set")));
  unsetenv("LOCKSTEP_CASE");
  EXPECT_THAT(ReadCaseEnvironment(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("LOCKSTEP_CASE is not set")));
}

// Returns a tensor of every type that numpy supports.
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

// Python reads the files that C++ wrote and writes them again.
TEST(PythonAgreementTest, EachReadsTheOthersFiles) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/python_agreement");
  const std::string input = folder + "/case", written = folder + "/output";
  std::filesystem::create_directories(input);
  std::filesystem::create_directories(written);
  ASSERT_THAT(WriteCaseFolder(input, ExampleCase(), Files()), IsOk());
  ASSERT_THAT(WriteSafetensors(input + "/types", Types()), IsOk());
  RunPythonTest("numpy",
                absl::StrCat("conformance/protocol/python_agreement.py ", input,
                             " ", written),
                /*deadline_seconds=*/55);
  if (testing::Test::IsSkipped()) return;
  const auto text = ReadFile(written + "/read.json");
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(ParseCase(*text, "read.json"), IsOkAndHolds(ExampleCase()));
  EXPECT_THAT(ReadSafetensors(written + "/weights"),
              IsOkAndHolds(Files().weights));
  EXPECT_THAT(ReadSafetensors(written + "/types"), IsOkAndHolds(Types()));
  const auto unsupported = ReadRankOutput(written, 2);
  ASSERT_THAT(unsupported, IsOk());
  EXPECT_EQ(unsupported->unsupported, "there is no \"bfloat16\", é\n");
  const auto output = ReadRankOutput(written, 1);
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
  // Tensors compare as bytes: NaN equals NaN, and 0 differs from -0.
  const NamedTensors want = {
      {"gradient.1/W1",
       Tensor<float>({2, 2}, {0.5f, -0.0f, std::nanf(""), 3e38f})},
      {"parameter.12/W1", Tensor<double>({2, 2}, {1, 2, 3, 4})},
      {"buffer.12/bn.num_batches_tracked", Tensor<int64_t>({}, {9})}};
  EXPECT_EQ(output->tensors, want);
}

}  // namespace
}  // namespace lockstep::conformance
