// Every kind of value that is not the one that was asked for.
#include "conformance/protocol/json_fields.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using testing::ElementsAre;
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

TEST(JsonFieldsTest, GivesValues) {
  const auto json = ParseForeignJson(
      R"({"bool": true, "integer": -7, "number": 2, "text": "é", "choice": "y",)"
      R"( "names": ["p", "q"], "integers": [3, 0], "null": null,)"
      R"( "largest": 9223372036854775807, "nan": "nan", "inf": "inf",)"
      R"( "minus": "-inf", "real": -1.5, "object": {"a": {"b": 4}}})",
      "f");
  ASSERT_THAT(json, IsOk());
  JsonFields fields(*json, "f");
  EXPECT_TRUE(fields.Has("bool"));
  EXPECT_FALSE(fields.Has("other"));
  EXPECT_TRUE(fields.Bool("bool"));
  EXPECT_EQ(fields.Integer("integer", -7, 7), -7);
  EXPECT_EQ(fields.Number("number", 2), 2);
  EXPECT_EQ(fields.Text("text"), "é");
  EXPECT_EQ(fields.OneOf("choice", {"x", "y"}), "y");
  EXPECT_THAT(fields.Names("names"), ElementsAre("p", "q"));
  EXPECT_THAT(fields.Integers("integers", 0, 3), ElementsAre(3, 0));
  EXPECT_TRUE(fields.IsNull("null"));
  EXPECT_FALSE(fields.IsNull("bool"));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(fields.Integer("largest", 0, kMost), kMost);
  EXPECT_TRUE(std::isnan(fields.AnyNumber("nan")));
  EXPECT_EQ(fields.AnyNumber("inf"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(fields.AnyNumber("minus"),
            -std::numeric_limits<double>::infinity());
  EXPECT_EQ(fields.AnyNumber("real"), -1.5);
  JsonFields object = fields.Object("object");
  JsonFields inner = object.Object("a");
  EXPECT_EQ(inner.Integer("b", 0, 9), 4);
  EXPECT_THAT(inner.Finish(), IsOk());
  EXPECT_THAT(object.Finish(), IsOk());
  EXPECT_THAT(fields.Finish(), IsOk());
}

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

}  // namespace
}  // namespace lockstep
