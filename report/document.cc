// Reads the facts about the machine from /proc, /sys and .git.
#include "report/document.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"

namespace lockstep {
namespace {

bool IsCommit(absl::string_view text) {
  return text.size() >= 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
         });
}

std::string CommitOr(absl::string_view text, absl::string_view otherwise) {
  return std::string(IsCommit(text) ? text : otherwise);
}

// Returns the commit of `ref` in the text of .git/packed-refs.
std::string PackedCommit(absl::string_view packed_refs, absl::string_view ref) {
  for (const absl::string_view line : absl::StrSplit(packed_refs, '\n')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() == 2 && fields[1] == ref) return CommitOr(fields[0], "");
  }
  return "";
}

}  // namespace

std::string CpuModel(absl::string_view cpuinfo) {
  for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (fields.size() != 2) continue;
    if (absl::StripAsciiWhitespace(fields[0]) != "model name") continue;
    return std::string(absl::StripAsciiWhitespace(fields[1]));
  }
  return "unknown CPU";
}

Machine DescribeMachine() {
  Machine machine = {
      .cpu = CpuModel(ReadFile("/proc/cpuinfo").value_or("")),
      .cores = UsableCores(),
      .memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<int64_t>(sysconf(_SC_PAGE_SIZE))};
  utsname name;
  if (uname(&name) == 0) {
    machine.system = absl::StrCat(name.sysname, " ", name.release);
  }
  return machine;
}

std::string MachineText(const Machine& machine) {
  const double gib = static_cast<double>(machine.memory_bytes) / (1 << 30);
  return absl::StrCat(machine.cpu, ", ", report::Counted(machine.cores, "core"),
                      absl::StrFormat(", %.0f GiB, ", gib), machine.system);
}

std::string CheckedOutCommit(const std::string& folder) {
  const std::string git = absl::StrCat(folder, "/.git/");
  const std::string text = ReadFile(git + "HEAD").value_or("");
  absl::string_view head = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&head, "ref: ")) return CommitOr(head, "");
  const std::string loose = ReadFile(absl::StrCat(git, head)).value_or("");
  return CommitOr(
      absl::StripAsciiWhitespace(loose),
      PackedCommit(ReadFile(git + "packed-refs").value_or(""), head));
}

namespace report {

std::string HostsText(const std::vector<Host>& hosts) {
  return absl::StrJoin(hosts, ", ", [](std::string* text, const Host& host) {
    absl::StrAppend(text, host.name, " (",
                    host.ranks.size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(host.ranks, ", "), " on ",
                    Counted(host.cores, "core"), ")");
  });
}
namespace {

const Value& Null() {
  static const Value& null = *new Value();
  return null;
}

}  // namespace

void Value::Add(Value value) {
  if (is_null()) value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
}

void Value::Add(std::string key, Value value) {
  if (is_null()) value_ = Object();
  std::get<Object>(value_).emplace_back(std::move(key), std::move(value));
}

size_t Value::size() const {
  if (const Array* const array = std::get_if<Array>(&value_)) {
    return array->size();
  }
  const Object* const object = std::get_if<Object>(&value_);
  return object == nullptr ? 0 : object->size();
}

std::vector<std::string> Value::keys() const {
  std::vector<std::string> keys;
  if (const Object* const object = std::get_if<Object>(&value_)) {
    for (const Member& member : *object) keys.push_back(member.first);
  }
  return keys;
}

const Value& Value::operator[](absl::string_view key) const {
  if (const Object* const object = std::get_if<Object>(&value_)) {
    for (const Member& member : *object) {
      if (member.first == key) return member.second;
    }
  }
  return Null();
}

const Value& Value::operator[](size_t index) const {
  const Array* const array = std::get_if<Array>(&value_);
  return array != nullptr && index < array->size() ? (*array)[index] : Null();
}

bool operator==(const Value& a, const Value& b) {
  const auto* const small = std::get_if<int64_t>(&a.value_);
  const auto* const large = std::get_if<uint64_t>(&b.value_);
  if (small != nullptr && large != nullptr) {
    return std::cmp_equal(*small, *large);
  }
  if (std::holds_alternative<uint64_t>(a.value_) &&
      std::holds_alternative<int64_t>(b.value_)) {
    return b == a;
  }
  return a.value_ == b.value_;
}

std::string Bar::Goal() const {
  return absl::StrCat(at_most ? "at most " : "at least ",
                      std::round(needed * 1000) / 1000, unit.empty() ? "" : " ",
                      unit);
}

std::string Bar::Outcome() const {
  if (!value.has_value()) return "not measured";
  const std::string shown = decimals
                                ? absl::StrFormat("%.*f", *decimals, *value)
                                : Significant(*value, 3);
  return absl::StrCat(shown, !judged ? ": not judged"
                             : Met() ? ": met"
                                     : ": NOT met");
}

std::string Bar::Text() const {
  return absl::StrCat(what, ", ", Goal(), ": ", Outcome());
}

Table BarsTable(const std::vector<Bar>& bars) {
  Table table = {.columns = {{.title = "bar", .left = true},
                             {.title = "goal", .left = true},
                             {.title = "measured", .left = true}}};
  for (const Bar& bar : bars) {
    const Tone tone = !bar.value || !bar.judged ? Tone::kPlain
                      : bar.Met()               ? Tone::kGood
                                                : Tone::kBad;
    table.rows.push_back({bar.what, bar.Goal(), {bar.Outcome(), tone}});
  }
  return table;
}

Value TextOrNull(absl::string_view text) {
  return text.empty() ? Value() : Value(text);
}

Origin OriginOf(const std::string& label, std::span<char* const> argv) {
  // `bazel run` sets this variable.
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const bool bazel = workspace != nullptr;
  std::vector<std::string> words = {bazel ? absl::StrCat("bazel run ", label)
                                          : std::string(argv[0])};
  if (bazel && argv.size() > 1) words.push_back("--");
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return {.machine = DescribeMachine(),
          .command = absl::StrJoin(words, " "),
          .commit = bazel ? CheckedOutCommit(workspace) : "",
          .created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(),
                                      absl::UTCTimeZone())};
}

}  // namespace report
}  // namespace lockstep
