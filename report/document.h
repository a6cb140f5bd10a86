// What a command found and what a reader must know to believe it, whatever the
// form. report/write.h writes it for a terminal, as JSON, as Markdown and as a
// page.
#ifndef LOCKSTEP_REPORT_DOCUMENT_H_
#define LOCKSTEP_REPORT_DOCUMENT_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

struct Machine {
  std::string cpu = {};      // The model's name, or "unknown CPU".
  int cores = 1;             // That this process may use.
  int64_t memory_bytes = 0;  // Of the machine; 0 if unknown.
  std::string system = {};   // "Linux 6.1.0".
};

Machine DescribeMachine();

// "Example 9000, 2 cores, 16 GiB, Linux 6.1".
std::string MachineText(const Machine& machine);

// The model name in the text of /proc/cpuinfo, or "unknown CPU".
std::string CpuModel(absl::string_view cpuinfo);

// The commit that is checked out in the git work tree at `folder`, read from
// its .git folder; empty if that cannot be told.
std::string CheckedOutCommit(const std::string& folder);

namespace report {

// A host of a run on several.
struct Host {
  std::string name = {};
  std::vector<int> ranks = {};
  int cores = 1;  // That its ranks may use together.
};

// "node1 (ranks 0, 1 on 2 cores), node2 (rank 2 on 1 core)".
std::string HostsText(const std::vector<Host>& hosts);

// Where the numbers are from.
struct Origin {
  Machine machine = {};          // Of rank 0's host.
  std::vector<Host> hosts = {};  // Of a run on several; else empty.
  // Of the time of the machine's cores during the run, the share that other
  // programs had. Not known for commands that do not measure time.
  std::optional<double> others_share = {};
  std::string command = {};  // As its user typed it.
  std::string commit = {};   // Empty if unknown.
  std::string created = {};  // UTC, as "2024-05-31T16:20:00Z".
};

// Of a command that runs now. `label`: the program's, as a user of `bazel run`
// types it, such as "//benchmarks:scaling". The commit is what `bazel run`
// built, as CheckedOutCommit gives it.
Origin OriginOf(const std::string& label, std::span<char* const> argv);

// A JSON value whose members keep their order. It stands in for nlohmann's type
// because that one's header takes longer to compile than most sources.
class Value {
 public:
  using Array = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Object = std::vector<Member>;
  using Variant = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double,
                               std::string, Array, Object>;

  Value() = default;  // null
  Value(bool value) : value_(value) {}
  template <std::signed_integral T>
  Value(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Value(T value)
      : value_(static_cast<uint64_t>(value)) {}
  Value(double value) : value_(value) {}
  Value(const char* text) : value_(std::string(text)) {}
  Value(absl::string_view text) : value_(std::string(text)) {}
  Value(std::string text) : value_(std::move(text)) {}
  Value(Array values) : value_(std::move(values)) {}
  Value(Object members) : value_(std::move(members)) {}
  Value(std::initializer_list<Member> members) : value_(Object(members)) {}
  // null where there is none.
  template <typename T>
  Value(const std::optional<T>& value) {
    if (value.has_value()) *this = Value(*value);
  }
  template <typename T>
  Value(const std::vector<T>& values) : value_(Array()) {
    for (const T& value : values) Add(value);
  }

  // To an array, or null, which becomes one; to an object likewise.
  void Add(Value value);
  void Add(std::string key, Value value);

  bool is_null() const { return value_.index() == 0; }
  // Elements or members; 0 for what has none.
  size_t size() const;
  std::vector<std::string> keys() const;
  // The member or element; null where there is none.
  const Value& operator[](absl::string_view key) const;
  const Value& operator[](size_t index) const;
  const Variant& variant() const { return value_; }

  // Integers are equal where their values are; no integer equals a double.
  friend bool operator==(const Value& a, const Value& b);

 private:
  Variant value_;
};

// null for empty text.
Value TextOrNull(absl::string_view text);

// How a cell is coloured where there are colours.
enum class Tone { kPlain, kGood, kBad };

struct Cell {
  Cell(std::string text, Tone tone = Tone::kPlain)
      : text(std::move(text)), tone(tone) {}
  Cell(const char* text) : text(text) {}

  std::string text;
  Tone tone = Tone::kPlain;
};

struct Column {
  std::string title = {};
  // In the terminal, in characters. 0: as wide as the widest cell. Tables whose
  // rows are printed as they are measured need a width.
  int width = 0;
  // Text begins at the left edge, and a page breaks its lines where the table
  // is too wide. Numbers end at the right.
  bool left = false;
};

// A row with fewer cells than columns ends in one that takes the columns that
// are left.
struct Table {
  std::vector<Column> columns = {};
  std::vector<std::vector<Cell>> rows = {};
};

// One curve or set of bars of a chart: a value for each place along the x axis.
// A place without a value is left out.
struct Series {
  enum class Kind {
    kBars,
    kLine,
    kIdeal,  // A dashed line without points.
    kLevel,  // A short line across each bar.
  };

  std::string name = {};
  Kind kind = Kind::kBars;
  std::string color = "accent";  // A variable of report_page.css.
  std::string stack = {};        // Bars of one stack stand on one another.
  std::vector<std::optional<double>> values = {};
  // If not empty: the range around each value; a label above each bar.
  std::vector<std::pair<double, double>> ranges = {};
  std::vector<std::string> labels = {};
};

struct Chart {
  std::string title = {};
  std::string x_title = {};
  std::string y_title = {};
  std::vector<std::string> places = {};  // One for each value of a series.
  // If not empty: where the places lie on a linear x axis. Where they are far
  // apart, both axes are logarithmic.
  std::vector<double> positions = {};
  bool percent = false;   // Values are shares of 1.
  int decimals = 0;       // Of values that are shown.
  std::string unit = {};  // Behind them: " ms".
  std::vector<Series> series = {};
};

// A word with its explanation, or a fact with its name.
struct Term {
  std::string name = {};
  std::string text = {};
};

struct Section {
  std::string title = {};
  std::string about = {};         // What was measured here, in one line.
  std::vector<Term> points = {};  // Findings, each with its name.
  // The lines that a program printed. They are not wrapped.
  std::vector<std::string> output = {};
  Table table = {};
  std::vector<std::string> notes = {};  // Under the table.
  std::string conclusion = {};          // What it comes to, in sentences.
  std::vector<Chart> charts = {};       // Pages only.
};

// A goal that the project set itself.
struct Bar {
  std::string what = {};
  double needed = 0;
  bool at_most = false;  // Else at least.
  std::string unit = {};
  std::optional<double> value = {};  // None if it was not measured.
  bool judged = true;  // False if the value says nothing about the goal.
  // The decimals of the value as it is shown, which may be negative; if none,
  // it has three digits.
  std::optional<int> decimals = {};

  bool Met() const {
    return value && (at_most ? *value <= needed : *value >= needed);
  }
  // "at least 20 times as fast"; "25.0: met", "19.9: NOT met", "19.9: not
  // judged", "not measured";
  // all three, as "sums, at least 20 times as fast: 25.0: met".
  std::string Goal() const;
  std::string Outcome() const;
  std::string Text() const;
};

// A row for each: what it is, its goal, and its outcome.
Table BarsTable(const std::vector<Bar>& bars);

struct Document {
  std::string name = {};   // "lockstep.scaling"
  int schema_version = 1;  // Of `data`: raised when a key changes or goes away.
  std::string title = {};  // Of a page.
  std::string about = {};  // What was measured, in one line.
  // The result in one line, which every form shows first.
  std::string verdict = {};
  Tone verdict_tone = Tone::kPlain;
  Origin origin = {};
  // What is to be known before the numbers are read.
  std::vector<std::string> notes = {};
  std::vector<Section> sections = {};
  std::vector<Term> terms = {};           // How to read the sections.
  std::vector<std::string> remarks = {};  // What is missing, and why.
  std::vector<Bar> bars = {};
  std::string no_bars = {};  // Why there are none, if that is worth it.
  // Pages only: settings; how it was measured, in sentences.
  std::vector<Term> facts = {};
  std::vector<std::string> method = {};
  Value data = {};  // The members of the JSON that are not `origin`'s.
};

// Numbers as the text that reports show, and text as one line of UTF-8.

// With `digits` significant digits, as far as decimals can do that: at 4, 0.12
// is "0.120", 45.678 "45.68" and 123456 "123456". value: at least 0.
std::string Significant(double value, int digits);

// A time in milliseconds, with four significant digits.
std::string Milliseconds(double seconds);

// 0.805 as "81%", or with one decimal as "80.5%".
std::string Percent(double share, int decimals = 0);

// 1234567 as "1,234,567".
std::string Grouped(int64_t count);

// "8 B", "4 KiB", "64 MiB", "1 GiB"; bytes where that is not exact, and for ten
// millions or more of them "9.5 MiB".
std::string Bytes(int64_t bytes);

// "1 rank", "2 ranks".
std::string Counted(int64_t count, absl::string_view what);

// The text in one line of UTF-8: runs of space as one, none at its ends; U+FFFD
// for what is not UTF-8, for control characters (C0, DEL and C1) and for marks
// that change the direction of text or cannot be seen. Text of more than `most`
// bytes is cut between two characters, and ends in " ...".
std::string OneLine(absl::string_view text, size_t most = 400);

// The text as one line, of any length, that Markdown, GitHub's too, shows as it
// is: unchanged if none of its characters has a meaning in Markdown, else as a
// span of code. `in_table`: for a cell of a table, in which '|' is escaped.
std::string MarkdownText(absl::string_view text, bool in_table = false);

// The same, always as a span of code.
std::string MarkdownCode(absl::string_view text, bool in_table = false);

// One line of the text, of any length, as HTML shows it.
std::string HtmlText(absl::string_view text);

}  // namespace report
}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_DOCUMENT_H_
