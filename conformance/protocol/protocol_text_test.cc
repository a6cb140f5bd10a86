// Tests the texts of cases and of outputs: round trips, every kind of invalid
// text, and the fuzz checks of the readers on seeds and their mutations. Also
// tests every kind of JSON value that differs from the requested one.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/json_fields.h"
#include "conformance/protocol/protocol_check.h"
#include "conformance/protocol/rank_output.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/fuzz_inputs.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Matches an error that rejects a text as damaged, with these words.
auto IsRefused(const testing::Matcher<std::string>& words) {
  return StatusIs(absl::StatusCode::kDataLoss, words);
}

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
  EXPECT_THAT(ParseForeignJson(absl::StrCat(Repeated("[", kMaxJsonDepth),
                                            Repeated("]", kMaxJsonDepth)),
                               "f"),
              IsOk());
  for (const int depth : {kMaxJsonDepth + 1, 100'000}) {
    for (const char* open : {"[", "{\"a\":"}) {
      EXPECT_THAT(ParseForeignJson(Repeated(open, depth), "f"),
                  IsRefused("f: is nested more than 16 deep"));
    }
  }
}

using Ask = void (*)(JsonFields&);

// Calls `ask` on the text's object and returns the result of Finish().
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
                IsRefused(StartsWith("f: " + c.message)))
        << c.value;
  }
  for (Ask ask : {kBool, kInteger, kNumber, kAnyNumber, kText, kOneOf, kNames,
                  kIntegers, kArray, kObject}) {
    EXPECT_THAT(Asked("{}", ask), IsRefused("f: a is missing"));
  }
}

TEST(JsonFieldsTest, GivesTheFirstErrorAndUnknownKeysLast) {
  EXPECT_THAT(Asked(R"({"b": 1, "a": 1})",
                    [](JsonFields& f) {
                      f.Bool("a");
                      f.Bool("c");
                    }),
              IsRefused(StartsWith("f: a is 1")));
  EXPECT_THAT(Asked(R"({"b": 1, "a": true})", kBool),
              IsRefused("f: unknown key 'b'"));
  EXPECT_THAT(Asked("[1]", kBool),
              IsRefused("f: the document is an array, not an object"));
  EXPECT_THAT(Asked("{}", [](JsonFields& f) { f.Fail("a", "is odd"); }),
              IsRefused("f: a is odd"));
}

TEST(CaseTest, ReadsBackWhatItFormats) {
  const Case smallest = {.name = "n", .model = "m", .batch_sizes = {1}};
  for (const Case& c : {ExampleCase(), smallest}) {
    EXPECT_THAT(ParseCase(FormatCase(c), "f"), IsOkAndHolds(c));
  }
  EXPECT_EQ(json::parse(FormatCase(ExampleCase())).size(), 17u);
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

TEST(RankOutputTest, ReadsBackWhatItFormats) {
  const RankOutput unsupported = {.unsupported = "no \"bfloat16\"\nhere"};
  for (const RankOutput& output :
       {ExampleRankOutput(), unsupported, RankOutput()}) {
    EXPECT_THAT(ParseRankOutput(FormatRankOutput(output), "f"),
                IsOkAndHolds(output));
  }
}

TEST(RankOutputTest, ReadsBackWhatIsNoNumber) {
  RankOutput output = ExampleRankOutput();
  output.steps[0].loss = std::numeric_limits<double>::quiet_NaN();
  output.evaluation->loss = std::numeric_limits<double>::quiet_NaN();
  output.evaluation->accuracy = std::numeric_limits<double>::infinity();
  const auto read = ParseRankOutput(FormatRankOutput(output), "f");
  ASSERT_THAT(read, IsOk());
  EXPECT_TRUE(std::isnan(*read->steps[0].loss));
  EXPECT_TRUE(std::isnan(read->evaluation->loss));
  EXPECT_EQ(read->evaluation->accuracy,
            std::numeric_limits<double>::infinity());
}

TEST(RankOutputTest, ReadsTheExampleOfTheProtocol) {
  const auto read = ParseRankOutput(
      R"({"protocol": 1, "rank": 0, "world_size": 2,
          "software": "PyTorch 1.13.1, gloo",
          "steps": [{"epoch": 0, "indices": [0, 2, 4, 6], "loss": 2.31}],
          "evaluation": {"indices": [0, 2, 4], "loss": 2.30, "accuracy": 0.1,
                         "count": 5}})",
      "f");
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->world_size, 2);
  EXPECT_EQ(read->steps[0].indices, (std::vector<int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(read->evaluation->count, 5);
  EXPECT_THAT(ParseRankOutput(R"({"protocol": 1, "rank": 1, "world_size": 2,
                                  "unsupported": "why"})",
                              "f"),
              IsOk());
}

struct Change {
  const char* pointer;  // A JSON pointer.
  json value;
  const char* message;
};

std::vector<Change> CaseChanges() {
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

std::vector<Change> OutputChanges() {
  return {
      {"/protocol", 0, "protocol is 0, not an integer from 1 to 1"},
      {"/rank", -1, "rank is -1, not an integer from 0 to 2"},
      {"/rank", 3, "rank is 3, not an integer from 0 to 2"},
      {"/rank", "1", "rank is \"1\", not"},
      {"/world_size", 0, "world_size is 0, not an integer from 1"},
      {"/world_size", 1e18, "world_size is 1e+18, not an integer"},
      {"/software", 1.13, "software is 1.13, not a string"},
      {"/software", std::string(70000, 's'), "software has 70000 bytes"},
      {"/steps", nullptr, "steps is null, not an array"},
      {"/steps/0", 3, "steps[0] is 3, not an object"},
      {"/steps/1/epoch", -1, "steps[1].epoch is -1"},
      {"/steps/1/epoch", 0.5, "steps[1].epoch is 0.5"},
      {"/steps/0/indices", 3, "steps[0].indices is 3, not an array"},
      {"/steps/0/indices/1", -2, "steps[0].indices[1] is -2, not an integer"},
      {"/steps/0/indices/2", 4.0, "steps[0].indices[2] is 4.0"},
      {"/steps/0/indices/0", uint64_t{1} << 63, "steps[0].indices[0] is 9223"},
      {"/steps/0/loss", "NaN", "steps[0].loss is \"NaN\", not a number"},
      {"/steps/0/loss", {1}, "steps[0].loss is an array"},
      {"/steps/2/lr", 1, "unknown key 'steps[2].lr'"},
      {"/evaluation", json::array(), "evaluation is an array"},
      {"/evaluation/loss", nullptr, "evaluation.loss is null, not a number"},
      {"/evaluation/accuracy", true, "evaluation.accuracy is true"},
      {"/evaluation/count", -5, "evaluation.count is -5"},
      {"/evaluation/count", 5.0, "evaluation.count is 5.0"},
      {"/evaluation/f1", 1, "unknown key 'evaluation.f1'"},
      {"/colour", "red", "unknown key 'colour'"},
      {"/unsupported", "why", "unknown key 'evaluation'"},
      {"/unsupported", 1, "unsupported is 1, not a string"},
  };
}

// A document of the protocol, the prefixes of its objects' key paths, and the
// changes to it with their expected results.
struct Document {
  json good;
  absl::Status (*parse)(const std::string& text, const std::string& path);
  std::vector<std::pair<const char*, const char*>> objects;
  std::vector<Change> changes;
};

std::vector<Document> Documents() {
  return {
      {json::parse(FormatCase(ExampleCase())),
       [](const std::string& text, const std::string& path) {
         return ParseCase(text, path).status();
       },
       {{"", ""}, {"/optimizer", "optimizer."}, {"/write", "write."}},
       CaseChanges()},
      {json::parse(FormatRankOutput(ExampleRankOutput())),
       [](const std::string& text, const std::string& path) {
         return ParseRankOutput(text, path).status();
       },
       {{"", ""}, {"/steps/0", "steps[0]."}, {"/evaluation", "evaluation."}},
       OutputChanges()}};
}

TEST(DocumentTest, NamesTheFileAndTheKeyThatIsWrong) {
  for (const Document& document : Documents()) {
    for (const Change& change : document.changes) {
      json bad = document.good;
      bad[json::json_pointer(change.pointer)] = change.value;
      EXPECT_THAT(
          document.parse(bad.dump(), "c/f.json"),
          IsRefused(StartsWith(absl::StrCat("c/f.json: ", change.message))));
    }
  }
}

TEST(DocumentTest, NamesEachKeyThatIsMissing) {
  for (const Document& document : Documents()) {
    for (const auto& [object, path] : document.objects) {
      const json::json_pointer pointer(object);
      for (const auto& [key, value] : document.good[pointer].items()) {
        json bad = document.good;
        bad[pointer].erase(key);
        EXPECT_THAT(document.parse(bad.dump(), "f"),
                    IsRefused(absl::StrCat("f: ", path, key, " is missing")));
      }
    }
  }
}

constexpr int kMutations = 5000;

using Check = std::string (*)(const std::string& text, bool& accepted);

// Also expects that some mutations are accepted. Otherwise only rejections
// would be tested.
void ExpectPromisesKept(Check check, const std::vector<std::string>& seeds) {
  for (const std::string& seed : seeds) {
    bool accepted = false;
    EXPECT_EQ(check(seed, accepted), "");
    EXPECT_TRUE(accepted);
  }
  std::mt19937 random(17);
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    bool ok = false;
    const std::string text = MutateSeed(seeds, random);
    ASSERT_EQ(check(text, ok), "") << text;
    accepted += ok ? 1 : 0;
  }
  EXPECT_GT(accepted, kMutations / 200);
  EXPECT_LT(accepted, kMutations / 2);
}

TEST(ProtocolFuzzTest, ReaderOfCasesKeepsItsPromises) {
  ExpectPromisesKept(CheckCaseText, CaseSeeds());
}

TEST(ProtocolFuzzTest, ReaderOfRankOutputsKeepsItsPromises) {
  ExpectPromisesKept(CheckRankOutputText, RankOutputSeeds());
}

}  // namespace
}  // namespace lockstep::conformance
