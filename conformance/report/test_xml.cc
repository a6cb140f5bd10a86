// Expat's calls, put together.
#include <expat.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "conformance/report/test_logs.h"

namespace lockstep {
namespace {

constexpr int kMostDepth = 32;

// What the elements so far say. Expat calls its functions.
class Reader {
 public:
  explicit Reader(XML_Parser parser) : parser_(parser) {
    XML_SetUserData(parser, this);
    XML_SetElementHandler(
        parser,
        [](void* self, const char* name, const char** attributes) {
          static_cast<Reader*>(self)->Start(name, attributes);
        },
        [](void* self, const char* name) {
          static_cast<Reader*>(self)->End(name);
        });
    XML_SetCharacterDataHandler(parser, [](void* self, const char* text,
                                           int size) {
      static_cast<Reader*>(self)->AddText({text, static_cast<size_t>(size)});
    });
    XML_SetStartDoctypeDeclHandler(
        parser, [](void* self, const char*, const char*, const char*, int) {
          static_cast<Reader*>(self)->Stop("it has a document type");
        });
  }

  const std::string& refusal() const { return refusal_; }
  TestXml Take() { return std::move(xml_); }

 private:
  static std::string Attribute(const char** attributes,
                               absl::string_view name) {
    for (; *attributes != nullptr; attributes += 2) {
      if (attributes[0] == name) return attributes[1];
    }
    return "";
  }

  void Stop(const std::string& why) {
    if (refusal_.empty()) refusal_ = why;
    XML_StopParser(parser_, XML_FALSE);
  }

  void Start(absl::string_view name, const char** attributes) {
    if (depth_ == 0 && name != "testsuites" && name != "testsuite") {
      return Stop(absl::StrCat("it begins with <", name, ">, no test's"));
    }
    if (++depth_ > kMostDepth) return Stop("its elements are too deep");
    if (name == "testsuites" || name == "testsuite") {
      if (xml_.started.empty()) {
        xml_.started = Attribute(attributes, "timestamp");
      }
    } else if (name == "testcase") {
      StartCase(attributes);
    } else if (in_case_ && name == "property") {
      xml_.cases.back().properties.emplace_back(Attribute(attributes, "name"),
                                                Attribute(attributes, "value"));
    } else if (in_case_ && (name == "failure" || name == "error")) {
      StartMessage(TestOutcome::kFailed, attributes);
    } else if (in_case_ && name == "skipped") {
      StartMessage(TestOutcome::kSkipped, attributes);
    }
  }

  void StartCase(const char** attributes) {
    in_case_ = true;
    TestCaseResult& made = xml_.cases.emplace_back();
    const std::string suite = Attribute(attributes, "classname");
    const std::string name = Attribute(attributes, "name");
    made.name = suite.empty() ? name : absl::StrCat(suite, ".", name);
    if (!absl::SimpleAtod(Attribute(attributes, "time"), &made.seconds)) {
      made.seconds = 0;
    }
    if (Attribute(attributes, "status") == "notrun") {
      made.outcome = TestOutcome::kSkipped;
      made.message = "disabled";
    }
  }

  // A failure counts, whatever else the test says of itself.
  void StartMessage(TestOutcome outcome, const char** attributes) {
    TestCaseResult& made = xml_.cases.back();
    if (made.outcome == TestOutcome::kFailed) return;
    made.outcome = outcome;
    made.message = Attribute(attributes, "message");
    in_message_ = made.message.empty();
  }

  void AddText(absl::string_view text) {
    if (in_message_) absl::StrAppend(&xml_.cases.back().message, text);
  }

  void End(absl::string_view name) {
    --depth_;
    if (name == "testcase") in_case_ = false;
    if (name == "failure" || name == "error" || name == "skipped") {
      in_message_ = false;
    }
  }

  const XML_Parser parser_;
  std::string refusal_;
  int depth_ = 0;
  bool in_case_ = false;
  bool in_message_ = false;
  TestXml xml_;
};

}  // namespace

absl::StatusOr<TestXml> ParseTestXml(absl::string_view text) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError("it is too large");
  }
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>,
                        decltype(&XML_ParserFree)>
      parser(XML_ParserCreate(nullptr), &XML_ParserFree);
  if (parser == nullptr) {
    return absl::ResourceExhaustedError("no memory for a parser of XML");
  }
  Reader reader(parser.get());
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()),
                XML_TRUE) == XML_STATUS_OK) {
    return reader.Take();
  }
  if (!reader.refusal().empty()) {
    return absl::InvalidArgumentError(reader.refusal());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("line ", XML_GetCurrentLineNumber(parser.get()), ": ",
                   XML_ErrorString(XML_GetErrorCode(parser.get()))));
}

}  // namespace lockstep
