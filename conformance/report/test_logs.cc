#include "conformance/report/test_logs.h"

#include <expat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace lockstep::conformance {
namespace {

constexpr int kMostDepth = 32;

// Collects the contents of the elements as Expat calls its functions.
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

  // Why the parser was stopped; "" if it was not.
  std::string refusal;
  TestXml xml;

 private:
  static std::string Attribute(const char** attributes,
                               absl::string_view name) {
    for (; *attributes != nullptr; attributes += 2) {
      if (attributes[0] == name) return attributes[1];
    }
    return "";
  }

  void Stop(const std::string& why) {
    if (refusal.empty()) refusal = why;
    XML_StopParser(parser_, XML_FALSE);
  }

  void Start(absl::string_view name, const char** attributes) {
    if (depth_ == 0 && name != "testsuites" && name != "testsuite") {
      return Stop(absl::StrCat("it begins with <", name, ">, no test's"));
    }
    if (++depth_ > kMostDepth) return Stop("its elements are too deep");
    if (name == "testsuites" || name == "testsuite") {
      if (xml.started.empty()) {
        xml.started = Attribute(attributes, "timestamp");
      }
    } else if (name == "testcase") {
      StartCase(attributes);
    } else if (in_case_ && name == "property") {
      xml.cases.back().properties.emplace_back(Attribute(attributes, "name"),
                                               Attribute(attributes, "value"));
    } else if (in_case_ && (name == "failure" || name == "error")) {
      StartMessage(TestOutcome::kFailed, attributes);
    } else if (in_case_ && name == "skipped") {
      StartMessage(TestOutcome::kSkipped, attributes);
    }
  }

  void StartCase(const char** attributes) {
    in_case_ = true;
    TestCaseResult& made = xml.cases.emplace_back();
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

  // A failure takes precedence over any other outcome of the test.
  void StartMessage(TestOutcome outcome, const char** attributes) {
    TestCaseResult& made = xml.cases.back();
    if (made.outcome == TestOutcome::kFailed) return;
    made.outcome = outcome;
    made.message = Attribute(attributes, "message");
    in_message_ = made.message.empty();
  }

  void AddText(absl::string_view text) {
    if (in_message_) absl::StrAppend(&xml.cases.back().message, text);
  }

  void End(absl::string_view name) {
    --depth_;
    if (name == "testcase") in_case_ = false;
    if (name == "failure" || name == "error" || name == "skipped") {
      in_message_ = false;
    }
  }

  const XML_Parser parser_;
  int depth_ = 0;
  bool in_case_ = false;
  bool in_message_ = false;
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
    return std::move(reader.xml);
  }
  if (!reader.refusal.empty()) {
    return absl::InvalidArgumentError(reader.refusal);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("line ", XML_GetCurrentLineNumber(parser.get()), ": ",
                   XML_ErrorString(XML_GetErrorCode(parser.get()))));
}

// Walks the folders: TARGET/test.xml, or TARGET/shard_2_of_4/test.xml.
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = 64 << 20;
constexpr int64_t kMostParts = 10000;
// A folder with one of these files holds the results of a test.
constexpr const char* kFiles[] = {"test.xml", "test.log", "test.cache_status"};

// A folder with the results of a test, or of one shard or run of it.
struct Leaf {
  std::string folder;
  std::string name = {};    // "shard 2 of 4", or "".
  std::string layout = {};  // Equal for all leaves of one `bazel test`.
  int64_t leaves = 1;       // The number of leaves in this layout.
  fs::file_time_type written = {};
};

// Parses a count from 1 to kMostParts in Bazel's form, without leading zeros.
bool ParseCount(const std::string& text, int64_t& count) {
  return !text.empty() && text[0] != '0' && absl::ascii_isdigit(text[0]) &&
         absl::SimpleAtoi(text, &count) && count <= kMostParts;
}

// Parses the name of a leaf of a target: "shard_2_of_4", "run_1_of_3" or
// "shard_2_of_4_run_1_of_3". Returns false for any other name.
bool ParseLeafName(const std::string& name, Leaf& leaf) {
  const std::vector<std::string> words = absl::StrSplit(name, '_');
  const bool both = words.size() == 8;
  if (words.size() != 4 && !both) return false;
  Leaf parsed = leaf;
  for (size_t i = 0; i < words.size(); i += 4) {
    int64_t number = 0, count = 0;
    const bool shard = i == 0 && words[i] == "shard";
    if ((!shard && (words[i] != "run" || (both && i == 0))) ||
        !ParseCount(words[i + 1], number) || words[i + 2] != "of" ||
        !ParseCount(words[i + 3], count) || number > count) {
      return false;
    }
    absl::StrAppend(&parsed.name, i == 0 ? "" : ", ", words[i], " ", number,
                    " of ", count);
    absl::StrAppend(&parsed.layout, words[i], "_of_", count, " ");
    parsed.leaves *= count;
  }
  leaf = std::move(parsed);
  return true;
}

// Returns "//conformance/check:check_test" for "conformance/check/check_test".
std::string LabelOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "//:" + path;
  return absl::StrCat("//", path.substr(0, slash), ":", path.substr(slash + 1));
}

// Returns "conformance/check/check_test" for "//conformance/check:check_test".
std::string PathOf(absl::string_view label) {
  absl::ConsumePrefix(&label, "//");
  return absl::StrReplaceAll(label, {{":", "/"}});
}

// Returns the time of the newest result in the folder; none if it has none.
std::optional<fs::file_time_type> NewestResult(const fs::path& folder) {
  std::optional<fs::file_time_type> newest;
  for (const char* name : kFiles) {
    std::error_code error;
    // A file whose time cannot be read counts as a result, with the least time.
    // Reading it later fails and reports the problem.
    const fs::file_time_type written =
        fs::last_write_time(folder / name, error);
    if (error == std::errc::no_such_file_or_directory) continue;
    newest = std::max(newest.value_or(written), written);
  }
  return newest;
}

using Leaves = std::map<std::string, std::vector<Leaf>>;  // By label.

void AddFolder(const fs::path& testlogs, const fs::path& folder,
               Leaves& leaves) {
  const auto written = NewestResult(folder);
  if (!written.has_value()) return;
  Leaf leaf = {.folder = folder.string(), .written = *written};
  const bool is_part = ParseLeafName(folder.filename().string(), leaf);
  const fs::path target = is_part ? folder.parent_path() : folder;
  leaves[LabelOf(target.lexically_relative(testlogs).generic_string())]
      .push_back(std::move(leaf));
}

// Adds `folder` and all folders below it. Errors: those of ReadTestLogs.
absl::Status AddFolders(const fs::path& testlogs, const fs::path& folder,
                        Leaves& leaves) {
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  if (error == std::errc::no_such_file_or_directory ||
      error == std::errc::not_a_directory) {
    return absl::NotFoundError(absl::StrCat("no test logs in ", folder.string(),
                                            ": ", error.message()));
  }
  if (!error) AddFolder(testlogs, folder, leaves);
  for (; !error && walk != fs::recursive_directory_iterator();
       walk.increment(error)) {
    std::error_code ignored;  // A broken link is not a folder.
    if (walk->is_directory(ignored)) {
      AddFolder(testlogs, walk->path(), leaves);
    }
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "cannot read all of ", folder.string(), ": ", error.message()));
}

// Returns the leaves of the layout that was written last, by name.
std::vector<Leaf> Newest(std::vector<Leaf> leaves) {
  const std::string layout =
      std::ranges::max_element(leaves, {}, &Leaf::written)->layout;
  std::erase_if(leaves, [&](const Leaf& l) { return l.layout != layout; });
  std::ranges::sort(leaves, {}, &Leaf::name);
  return leaves;
}

// The test status in the file test.cache_status beside the XML. The file holds
// a protocol buffer, TestResultData of Bazel's test_status.proto; only its
// third field is read.
enum class BazelStatus { kUnknown, kPassed, kFlaky, kTimeout, kFailed };

BazelStatus ParseBazelStatus(absl::string_view bytes) {
  // The fields before the third are booleans: one byte for the key, one for the
  // value.
  for (size_t i = 0; i + 1 < bytes.size() && i <= 4; i += 2) {
    const int key = bytes[i], value = bytes[i + 1];
    if (key == 0x18) {
      constexpr BazelStatus kStatuses[] = {
          BazelStatus::kUnknown, BazelStatus::kPassed, BazelStatus::kFlaky,
          BazelStatus::kTimeout, BazelStatus::kFailed};
      if (value < 0) return BazelStatus::kUnknown;
      // All statuses after kFailed are failures too.
      return kStatuses[std::min<size_t>(static_cast<size_t>(value), 4)];
    }
    if (key != 0x08 && key != 0x10) break;
  }
  return BazelStatus::kUnknown;
}

// Returns the status of a leaf; kUnknown if there is none.
absl::StatusOr<BazelStatus> StatusOf(const Leaf& leaf) {
  const auto bytes =
      ReadForeignFile(leaf.folder + "/test.cache_status", kMostBytes);
  if (bytes.ok()) return ParseBazelStatus(*bytes);
  if (absl::IsNotFound(bytes.status())) return BazelStatus::kUnknown;
  return bytes.status();
}

void AddStarted(const std::string& started, TestTarget& target) {
  if (started.empty()) return;
  if (target.first_started.empty() || started < target.first_started) {
    target.first_started = started;
  }
  target.last_started = std::max(target.last_started, started);
}

// Returns the problem that Bazel's status shows besides the failed cases; ""
// for none. failed: whether a case failed.
std::string ProblemOf(const absl::StatusOr<BazelStatus>& status, bool failed) {
  if (!status.ok()) return std::string(status.status().message());
  switch (*status) {
    case BazelStatus::kUnknown:
      // The test may have failed after it wrote its XML.
      return "Bazel left no status for it";
    case BazelStatus::kFlaky:
      return "it failed before it passed";
    case BazelStatus::kFailed:
      return failed ? "" : "it failed although no case did: it ended badly";
    case BazelStatus::kPassed:
    case BazelStatus::kTimeout:  // Reported by AddLeaf.
      break;
  }
  return "";
}

// Adds the results of a leaf. Returns what is wrong with it; "" for nothing.
std::string AddLeaf(const Leaf& leaf, TestTarget& target) {
  const absl::StatusOr<BazelStatus> status = StatusOf(leaf);
  if (status.ok() && *status == BazelStatus::kTimeout) {
    // After a timeout, Bazel writes an XML that says less.
    return "it ran past its time limit";
  }
  const auto text = ReadForeignFile(leaf.folder + "/test.xml", kMostBytes);
  if (absl::IsNotFound(text.status())) return "it wrote no test.xml";
  if (!text.ok()) return std::string(text.status().message());
  absl::StatusOr<TestXml> xml = ParseTestXml(*text);
  if (!xml.ok()) {
    return absl::StrCat("its test.xml cannot be read: ",
                        xml.status().message());
  }
  AddStarted(xml->started, target);
  bool failed = false;
  for (TestCaseResult& result : xml->cases) {
    failed = failed || result.outcome == TestOutcome::kFailed;
    target.cases.push_back(std::move(result));
  }
  return ProblemOf(status, failed);
}

TestTarget ReadTarget(const std::string& label, std::vector<Leaf> all) {
  TestTarget target;
  target.label = label;
  const std::vector<Leaf> leaves = Newest(std::move(all));
  for (const Leaf& leaf : leaves) {
    const std::string problem = AddLeaf(leaf, target);
    if (problem.empty()) continue;
    target.problems.push_back(
        leaf.name.empty() ? problem : absl::StrCat(leaf.name, ": ", problem));
  }
  const int64_t missing =
      leaves[0].leaves - static_cast<int64_t>(leaves.size());
  if (missing > 0) {
    target.problems.push_back(absl::StrCat(
        missing, " of its ", leaves[0].leaves, " shards left no result"));
  }
  return target;
}

}  // namespace

absl::StatusOr<std::vector<TestTarget>> ReadTestLogs(
    const std::string& testlogs, std::span<const std::string> labels) {
  const fs::path base = fs::path(testlogs);
  const std::string part = "conformance";
  Leaves leaves;
  LOCKSTEP_RETURN_IF_ERROR(AddFolders(base, base / part, leaves));
  if (leaves.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no result of a test in ", (base / part).string()));
  }
  for (const std::string& label : labels) {
    if (absl::StartsWith(PathOf(label), part + "/")) continue;  // Already read.
    const fs::path folder = base / PathOf(label);
    const absl::Status added = AddFolders(base, folder, leaves);
    if (!added.ok() && !absl::IsNotFound(added)) return added;
  }
  std::vector<TestTarget> targets;
  for (auto& [label, found] : leaves) {
    targets.push_back(ReadTarget(label, std::move(found)));
  }
  return targets;
}

}  // namespace lockstep::conformance
