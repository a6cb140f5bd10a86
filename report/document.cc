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

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
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

// Formats numbers, and escapes characters that have a meaning in Markdown or
// HTML.
namespace {

constexpr int64_t kLongNumber = 10000000;  // Too long for a column.

// Code spans are not cut, since commands and labels must be shown whole.
constexpr size_t kNoLimit = absl::string_view::npos;

struct Character {
  size_t bytes = 1;
  bool shown = false;  // If false, U+FFFD is shown in its place.
};

// Returns whether a code point above ASCII is shown.
bool IsShown(uint32_t point) {
  if (point < 0xa0) return false;                        // C1.
  if (0x200b <= point && point <= 0x200f) return false;  // Zero width, marks.
  if (0x2028 <= point && point <= 0x202e) return false;  // Lines, directions.
  // Invisible marks, too.
  if (0x2060 <= point && point <= 0x206f) return false;
  if (0xd800 <= point && point <= 0xdfff) return false;  // Surrogates.
  return point != 0xfeff && point != 0x061c && point <= 0x10ffff;
}

// Returns the first character of `text`, which is not empty. Returns one byte
// if the text does not begin with valid UTF-8.
Character DecodeFirst(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, !absl::ascii_iscntrl(lead)};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < bytes) return {};
  uint32_t point = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (point < kLeast[bytes]) return {};  // An overlong encoding.
  return {bytes, IsShown(point)};
}

// Returns whether character i has no meaning in Markdown at its position. An
// underscore has none inside a word, for example.
bool IsPlain(absl::string_view text, size_t i) {
  const auto is_word = [&](size_t at) {
    return at < text.size() &&
           absl::ascii_isalnum(static_cast<unsigned char>(text[at]));
  };
  if (is_word(i) || absl::StrContains(" .,+-/()=%;'?^", text.substr(i, 1))) {
    return true;
  }
  // A colon is plain only at the end of a word, so ":smile:" is not.
  if (text[i] == ':') return i + 1 == text.size() || text[i + 1] == ' ';
  return text[i] == '_' && i > 0 && is_word(i - 1) && is_word(i + 1);
}

// Returns whether Markdown would make a link of the plain characters: Markdown
// links web addresses, and GitHub links its issue numbers ("gh-").
bool MakesLink(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return absl::StrContains(lower, "www.") || absl::StrContains(lower, "gh-");
}

}  // namespace

std::string Significant(double value, int digits) {
  for (int decimals = digits - 1; decimals > 0; --decimals) {
    // Rounding may add a digit.
    const double scale = std::pow(10.0, decimals);
    const double most = std::pow(10.0, digits - decimals);
    if (std::round(value * scale) < most * scale) {
      return absl::StrFormat("%.*f", decimals, value);
    }
  }
  return absl::StrFormat("%.0f", value);
}

std::string Milliseconds(double seconds) {
  return Significant(1e3 * seconds, 4);
}

std::string Percent(double share, int decimals) {
  return absl::StrFormat("%.*f%%", decimals, 100 * share);
}

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB"};
  int unit = 0;
  int64_t whole = bytes;
  while (unit < 3 && whole >= 1024 && whole % 1024 == 0) {
    whole /= 1024;
    ++unit;
  }
  if (whole < kLongNumber) return absl::StrCat(whole, kUnits[unit]);
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 999.95 ? absl::StrFormat("%.1f MiB", mib)
                      : absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string OneLine(absl::string_view text, size_t most) {
  text = absl::StripAsciiWhitespace(text);
  std::string line;
  while (!text.empty()) {
    const Character first = DecodeFirst(text);
    const absl::string_view bytes = text.substr(0, first.bytes);
    text.remove_prefix(first.bytes);
    const bool space =
        absl::ascii_isspace(static_cast<unsigned char>(bytes[0]));
    if (space && absl::EndsWith(line, " ")) continue;
    const absl::string_view shown = space         ? " "
                                    : first.shown ? bytes
                                                  : "\xef\xbf\xbd";
    if (line.size() + shown.size() > most) return line + " ...";
    absl::StrAppend(&line, shown);
  }
  return line;
}

std::string MarkdownText(absl::string_view text, bool in_table) {
  const std::string line = OneLine(text, kNoLimit);
  if (MakesLink(line)) return MarkdownCode(line, in_table);
  for (size_t i = 0; i < line.size(); ++i) {
    if (!IsPlain(line, i)) return MarkdownCode(line, in_table);
  }
  return line;
}

std::string MarkdownCode(absl::string_view text, bool in_table) {
  const std::string line = OneLine(text, kNoLimit);
  if (line.empty()) return "";
  size_t longest = 0, run = 0;
  std::string code;
  for (const char c : line) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
    if (c == '|' && in_table) {
      // A bar would end the cell, even inside code. Markdown removes the
      // backslash before a bar again. After another backslash a bar cannot be
      // written, so a broken bar replaces it.
      code += absl::EndsWith(code, "\\") ? "\xc2\xa6" : "\\|";
    } else {
      code.push_back(c);
    }
  }
  const std::string fence(longest + 1, '`');
  const char* const pad = longest > 0 ? " " : "";
  return absl::StrCat(fence, pad, code, pad, fence);
}

std::string HtmlText(absl::string_view text) {
  return absl::StrReplaceAll(OneLine(text, kNoLimit), {{"&", "&amp;"},
                                                       {"<", "&lt;"},
                                                       {">", "&gt;"},
                                                       {"\"", "&quot;"},
                                                       {"'", "&#39;"}});
}

}  // namespace report
}  // namespace lockstep
