// Cases: round trips, and each way in which one can be wrong; and every kind of
// JSON value that is not the one that was asked for.
#include "conformance/protocol/case.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/protocol/json_fields.h"
#include "conformance/protocol/protocol_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string Repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(ParseForeignJsonTest, SaysWhereATextIsNoJson) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "is not JSON, at byte 1"},
      {"{", "is not JSON, at byte 2"},
      {"{} x", "is not JSON, at byte 4"},
      {"{'a': 1}", "is not JSON, at byte 2"},
      {std::string("{}\0", 3), "is not JSON, at byte 3"},
      {"{\"a\": NaN}", "\"nan\", \"inf\" or \"-inf\""},
      {"{\"a\": Infinity}", "\"nan\", \"inf\" or \"-inf\""},
      {"{\"a\": -Infinity}", "\"nan\", \"inf\" or \"-inf\""},
      {"{\"a\": 1e999}", "is not JSON, at byte"},
      {"{\"a\": \"\xff\"}", "is not JSON, at byte 8"},
      {"{\"a\": \"\xc0\x80\"}", "is not JSON, at byte"},  // Overlong.
      {"{\"a\": \"\\ud800\"}", "is not JSON, at byte"},
      {"{\"a\": 1, \"b\": {\"a\": 2}, \"a\": 3}", "has the key 'a' twice"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(ParseForeignJson(text, "file.json"),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::AllOf(testing::StartsWith("file.json: "),
                                        HasSubstr(message))))
        << text;
  }
}

TEST(ParseForeignJsonTest, RefusesDeepNesting) {
  EXPECT_THAT(ParseForeignJson(absl::StrCat(Repeated("[", kMostJsonDepth),
                                            Repeated("]", kMostJsonDepth)),
                               "f"),
              IsOk());
  for (const int depth : {kMostJsonDepth + 1, 100'000}) {
    for (const char* open : {"[", "{\"a\":"}) {
      EXPECT_THAT(ParseForeignJson(Repeated(open, depth), "f"),
                  StatusIs(absl::StatusCode::kDataLoss,
                           "f: is nested more than 16 deep"));
    }
  }
}

using Ask = void (*)(JsonFields&);

// What Finish() says after `ask` has asked `text`.
absl::Status Asked(const std::string& text, Ask ask) {
  const auto json = ParseForeignJson(text, "f");
  if (!json.ok()) return json.status();
  JsonFields fields(*json, "f");
  ask(fields);
  return fields.Finish();
}

constexpr Ask kBool = [](JsonFields& f) { f.Bool("a"); };
constexpr Ask kInteger = [](JsonFields& f) { f.Integer("a", -2, 9); };
constexpr Ask kNumber = [](JsonFields& f) { f.Number("a", 0.5); };
constexpr Ask kAnyNumber = [](JsonFields& f) { f.AnyNumber("a"); };
constexpr Ask kText = [](JsonFields& f) { f.Text("a"); };
constexpr Ask kOneOf = [](JsonFields& f) { f.OneOf("a", {"x", "y"}); };
constexpr Ask kNames = [](JsonFields& f) { f.Names("a"); };
constexpr Ask kIntegers = [](JsonFields& f) { f.Integers("a", 0, 9); };
constexpr Ask kArray = [](JsonFields& f) { f.Array("a"); };
constexpr Ask kObject = [](JsonFields& f) {
  JsonFields object = f.Object("a");
  object.Integer("b", 0, 9);
  f.Check(object.Finish());
};

TEST(JsonFieldsTest, NamesTheKeyAndTheValueThatItCannotHave) {
  const std::string long_text = Repeated("x", 70000);
  struct {
    std::string value;
    Ask ask;
    std::string message;
  } const cases[] = {
      {"1", kBool, "a is 1, not true or false"},
      {"null", kBool, "a is null, not true or false"},
      {"-3", kInteger, "a is -3, not an integer from -2 to 9"},
      {"10", kInteger, "a is 10, not an integer from -2 to 9"},
      {"1.0", kInteger, "a is 1.0, not an integer"},
      {"18446744073709551615", kInteger, "a is 18446744073709551615, not"},
      {"true", kInteger, "a is true, not an integer"},
      {"\"1\"", kInteger, "a is \"1\", not an integer"},
      {"[1]", kInteger, "a is an array, not an integer"},
      {"0.25", kNumber, "a is 0.25, not a number of at least 0.5"},
      {"\"nan\"", kNumber, "a is \"nan\", not a number"},
      {"\"NaN\"", kAnyNumber, "a is \"NaN\", not a number, \"nan\", \"inf\""},
      {"null", kAnyNumber, "a is null, not a number"},
      {"1", kText, "a is 1, not a string"},
      {absl::StrCat("\"", long_text, "\""), kText,
       "a has 70000 bytes; at most 65536"},
      {"\"z\"", kOneOf, "a is \"z\", not \"x\" or \"y\""},
      {absl::StrCat("\"", long_text, "\""), kOneOf,
       absl::StrCat("a is \"", Repeated("x", 60), "...\", not")},
      {R"("\n\u001b[2J")", kOneOf, R"(a is "\n\x1b[2J", not)"},
      {"\"p\"", kNames, "a is \"p\", not an array"},
      {"[\"p\", 1]", kNames, "a[1] is 1, not a name"},
      {"[\"\"]", kNames, "a[0] is \"\", not a name"},
      {"[\"p\", \"q\", \"p\"]", kNames, "a has 'p' twice"},
      {"{}", kIntegers, "a is an object, not an array"},
      {"[0, 10]", kIntegers, "a[1] is 10, not an integer from 0 to 9"},
      {"[0, [1]]", kIntegers, "a[1] is an array, not an integer"},
      {"{}", kArray, "a is an object, not an array"},
      {"[]", kObject, "a is an array, not an object"},
      {"{}", kObject, "a.b is missing"},
      {"{\"b\": -1}", kObject, "a.b is -1, not an integer from 0 to 9"},
      {"{\"b\": 1, \"c\": 2}", kObject, "unknown key 'a.c'"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Asked(absl::StrCat("{\"a\": ", c.value, "}"), c.ask),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::StartsWith(absl::StrCat("f: ", c.message))))
        << c.value;
  }
  for (Ask ask : {kBool, kInteger, kNumber, kAnyNumber, kText, kOneOf, kNames,
                  kIntegers, kArray, kObject}) {
    EXPECT_THAT(Asked("{}", ask),
                StatusIs(absl::StatusCode::kDataLoss, "f: a is missing"));
  }
}

TEST(JsonFieldsTest, GivesTheFirstErrorAndUnknownKeysLast) {
  EXPECT_THAT(Asked(R"({"b": 1, "a": 1})",
                    [](JsonFields& f) {
                      f.Bool("a");
                      f.Bool("c");
                    }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a is 1")));
  EXPECT_THAT(Asked(R"({"b": 1, "a": true})", kBool),
              StatusIs(absl::StatusCode::kDataLoss, "f: unknown key 'b'"));
  EXPECT_THAT(Asked("[1]", kBool), StatusIs(absl::StatusCode::kDataLoss,
                                            "f: the document is an array, not "
                                            "an object"));
  EXPECT_THAT(Asked("{}", [](JsonFields& f) { f.Fail("a", "is odd"); }),
              StatusIs(absl::StatusCode::kDataLoss, "f: a is odd"));
}

TEST(CaseTest, ReadsBackWhatItFormats) {
  const Case smallest = {.name = "n", .model = "m", .batch_sizes = {1}};
  for (const Case& c : {ExampleCase(), smallest}) {
    EXPECT_THAT(ParseCase(FormatCase(c), "f"), IsOkAndHolds(c));
  }
  EXPECT_EQ(ExampleCase().world_size(), 3);
}

TEST(CaseTest, ReadsTheKeysOfTheProtocol) {
  EXPECT_THAT(
      ParseCase(
          R"({"write": {"state": [2], "gradients": []}, "evaluate": false,
              "stop_after": 0, "resume": false, "seed": 3, "shuffle": true,
              "epochs": 0, "accumulate": 1, "batch_sizes": [2, 1],
              "optimizer": {"weight_decay": 0, "momentum": 0,
                            "learning_rate": 1, "name": "sgd"},
              "dtype": "float32", "frozen": [], "unused": [],
              "batch_norm": "none", "model": "lenet", "name": "even",
              "protocol": 1})",
          "f"),
      IsOkAndHolds(Case{.name = "even",
                        .model = "lenet",
                        .learning_rate = 1,
                        .batch_sizes = {2, 1},
                        .epochs = 0,
                        .shuffle = true,
                        .seed = 3,
                        .write_state = {2}}));
}

struct Change {
  const char* pointer;  // A JSON pointer.
  json value;           // Discarded: take the key away.
  std::string message;
};

json Away() { return json(json::value_t::discarded); }

std::vector<Change> Changes() {
  const json many(4097, 1);
  return {
      {"/protocol", 2, "protocol is 2, not an integer from 1 to 1"},
      {"/protocol", "1", "protocol is \"1\""},
      {"/name", "", "name is empty"},
      {"/name", std::string(70000, 'n'), "name has 70000 bytes"},
      {"/model", "", "model is empty"},
      {"/batch_norm", "global", "batch_norm is \"global\", not \"none\""},
      {"/unused", "u", "unused is \"u\", not an array"},
      {"/frozen", {"b", "b"}, "frozen has 'b' twice"},
      {"/dtype", "float16", "dtype is \"float16\""},
      {"/optimizer", "sgd", "optimizer is \"sgd\", not an object"},
      {"/optimizer/name", "adam", "optimizer.name is \"adam\""},
      {"/optimizer/learning_rate", -0.1, "optimizer.learning_rate is -0.1"},
      {"/optimizer/learning_rate", "nan", "optimizer.learning_rate is \"nan\""},
      {"/optimizer/momentum", Away(), "optimizer.momentum is missing"},
      {"/optimizer/nesterov", true, "unknown key 'optimizer.nesterov'"},
      {"/batch_sizes", json::array(), "batch_sizes has 0 numbers"},
      {"/batch_sizes", many, "batch_sizes has 4097 numbers; 1 to 4096"},
      {"/batch_sizes", {4, -1}, "batch_sizes[1] is -1, not an integer"},
      {"/batch_sizes", {0, 0}, "batch_sizes are all 0"},
      {"/batch_sizes", {int64_t{1} << 62}, "batch_sizes[0] is 46116860184"},
      {"/accumulate", 0, "accumulate is 0, not an integer from 1"},
      {"/epochs", -1, "epochs is -1"},
      {"/epochs", 1e9, "epochs is 1000000000.0, not an integer"},
      {"/shuffle", 1, "shuffle is 1, not true or false"},
      {"/seed", -1, "seed is -1"},
      {"/seed", uint64_t{1} << 63, "seed is 9223372036854775808, not"},
      {"/resume", "no", "resume is \"no\""},
      {"/stop_after", 2'000'000'000, "stop_after is 2000000000"},
      {"/evaluate", nullptr, "evaluate is null"},
      {"/write", json::array(), "write is an array"},
      {"/write/gradients", {0}, "write.gradients[0] is 0"},
      {"/write/state", {3, 3}, "write.state has 3 after 3"},
      {"/write/state", {3, 2}, "write.state has 2 after 3"},
      {"/write/loss", true, "unknown key 'write.loss'"},
      {"/colour", "red", "unknown key 'colour'"},
  };
}

void Apply(const Change& change, json& document) {
  const json::json_pointer pointer(change.pointer);
  if (change.value.is_discarded()) {
    document[pointer.parent_pointer()].erase(pointer.back());
  } else {
    document[pointer] = change.value;
  }
}

TEST(CaseTest, NamesTheFileAndTheKeyThatIsWrong) {
  const json good = json::parse(FormatCase(ExampleCase()));
  for (const Change& change : Changes()) {
    json bad = good;
    Apply(change, bad);
    EXPECT_THAT(
        ParseCase(bad.dump(), "c/case.json"),
        StatusIs(absl::StatusCode::kDataLoss,
                 testing::StartsWith("c/case.json: " + change.message)));
  }
}

TEST(CaseTest, NamesEachKeyThatIsMissing) {
  const json good = json::parse(FormatCase(ExampleCase()));
  EXPECT_EQ(good.size(), 17u);
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    EXPECT_THAT(ParseCase(bad.dump(), "f"),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::StartsWith("f: " + key)));
  }
}

class CaseFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/case_folder");
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    files_.weights.tensors["W1"] =
        NamedTensor::Of<float>({2}, std::vector<float>(2));
    files_.data.tensors["train.labels"] =
        NamedTensor::Of<int64_t>({1}, std::vector<int64_t>(1));
  }

  std::string folder_;
  CaseFiles files_;
};

TEST_F(CaseFolderTest, ReadsBackWhatItWrote) {
  ASSERT_THAT(WriteCaseFolder(folder_, ExampleCase(), files_), IsOk());
  const auto read = ReadCaseFolder(folder_);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->c, ExampleCase());
  EXPECT_EQ(read->files.weights, files_.weights);
  EXPECT_EQ(read->files.data, files_.data);
}

TEST_F(CaseFolderTest, NamesTheFileThatIsWrong) {
  for (const char* name :
       {"case.json", "weights.safetensors", "data.safetensors"}) {
    const std::string path = absl::StrCat(folder_, "/", name);
    ASSERT_THAT(WriteCaseFolder(folder_, ExampleCase(), files_), IsOk());
    std::filesystem::resize_file(path, 7);
    EXPECT_THAT(ReadCaseFolder(folder_),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    std::filesystem::remove(path);
    EXPECT_THAT(ReadCaseFolder(folder_),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  }
  EXPECT_THAT(WriteCaseFolder(folder_ + "/none", ExampleCase(), files_),
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

}  // namespace
}  // namespace lockstep
