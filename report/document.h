// The content of a report: what a command found, and what a reader must know to
// trust it. The content does not depend on the form. report/write.h writes it
// for a terminal, as JSON, as Markdown and as an HTML page.
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
  int cores = 1;             // The number that this process may use.
  int64_t memory_bytes = 0;  // The machine's memory; 0 if unknown.
  std::string system = {};   // "Linux 6.1.0".
};

Machine DescribeMachine();

// Returns "Example 9000, 2 cores, 16 GiB, Linux 6.1".
std::string MachineText(const Machine& machine);

// Returns the model name in the text of /proc/cpuinfo, or "unknown CPU".
std::string CpuModel(absl::string_view cpuinfo);

// Returns the commit that is checked out in the git work tree at `folder`, read
// from its .git folder. Returns "" if the commit cannot be found.
std::string CheckedOutCommit(const std::string& folder);

namespace report {

// One host of a run that uses several.
struct Host {
  std::string name = {};
  std::vector<int> ranks = {};
  int cores = 1;  // The number that its ranks may use together.
};

// Returns "node1 (ranks 0, 1 on 2 cores), node2 (rank 2 on 1 core)".
std::string HostsText(const std::vector<Host>& hosts);

// The origin of the numbers.
struct Origin {
  Machine machine = {};          // The machine of rank 0.
  std::vector<Host> hosts = {};  // Empty unless the run used several.
  // The share of the machine's core time that other programs used during the
  // run. Unknown for commands that do not measure time.
  std::optional<double> others_share = {};
  std::string command = {};  // As the user typed it.
  std::string commit = {};   // Empty if unknown.
  std::string created = {};  // UTC, as "2024-05-31T16:20:00Z".
};

// Returns the origin of the command that runs now. `label`: the program's
// label, as a user of `bazel run` types it, such as "//benchmarks:scaling". The
// commit is the one that `bazel run` built, as CheckedOutCommit returns it.
Origin OriginOf(const std::string& label, std::span<char* const> argv);

// A JSON value whose members keep their order. It replaces nlohmann's type here
// because nlohmann's header takes longer to compile than most sources.
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
  // null if the optional is empty.
  template <typename T>
  Value(const std::optional<T>& value) {
    if (value.has_value()) *this = Value(*value);
  }
  template <typename T>
  Value(const std::vector<T>& values) : value_(Array()) {
    for (const T& value : values) Add(value);
  }

  // Appends an element to an array, or a member to an object. A null value
  // becomes an array or an object first.
  void Add(Value value);
  void Add(std::string key, Value value);

  bool is_null() const { return value_.index() == 0; }
  // The number of elements or members; 0 for any other value.
  size_t size() const;
  std::vector<std::string> keys() const;
  // Return the member or the element, or null if there is none.
  const Value& operator[](absl::string_view key) const;
  const Value& operator[](size_t index) const;
  const Variant& variant() const { return value_; }

  // Two integers are equal if their values are equal. No integer equals a
  // double.
  friend bool operator==(const Value& a, const Value& b);

 private:
  Variant value_;
};

// Returns null for empty text, otherwise the text.
Value TextOrNull(absl::string_view text);

// The colour of a cell, in forms that have colours.
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
  // The width in the terminal, in characters. 0 means as wide as the widest
  // cell. A table whose rows are printed while they are measured needs widths.
  int width = 0;
  // Whether the column is text. Text begins at the left edge, and a page breaks
  // its lines if the table is too wide. Numbers end at the right edge.
  bool left = false;
};

// If a row has fewer cells than columns, its last cell spans the remaining
// columns.
struct Table {
  std::vector<Column> columns = {};
  std::vector<std::vector<Cell>> rows = {};
};

// One curve or one set of bars of a chart: a value for each place along the x
// axis. A place without a value is left out.
struct Series {
  enum class Kind {
    kBars,
    kLine,
    kIdeal,  // A dashed line without points.
    kLevel,  // A short line across each bar.
  };

  std::string name = {};
  Kind kind = Kind::kBars;
  std::string color = "accent";  // Named in report_page.css.
  std::string stack = {};        // Bars of one stack are piled up.
  std::vector<std::optional<double>> values = {};
  // If not empty: the range around each value, and a label above each bar.
  std::vector<std::pair<double, double>> ranges = {};
  std::vector<std::string> labels = {};
};

struct Chart {
  std::string title = {};
  std::string x_title = {};
  std::string y_title = {};
  std::vector<std::string> places = {};  // One for each value of a series.
  // If not empty: the places' positions on a linear x axis. If they are far
  // apart, both axes are logarithmic.
  std::vector<double> positions = {};
  bool percent = false;   // Values are shares of 1.
  int decimals = 0;       // The decimals of values that are shown.
  std::string unit = {};  // The text after each value: " ms".
  std::vector<Series> series = {};
};

// A word with its explanation, or a fact with its name.
struct Term {
  std::string name = {};
  std::string text = {};
};

struct Section {
  std::string title = {};
  std::string about = {};         // What was measured, in one line.
  std::vector<Term> points = {};  // Findings, each with its name.
  // The lines that a program printed. They are not wrapped.
  std::vector<std::string> output = {};
  Table table = {};
  std::vector<std::string> notes = {};  // Shown under the table.
  std::string conclusion = {};          // The result, in sentences.
  std::vector<Chart> charts = {};       // Shown in pages only.
};

// A goal that the project set itself.
struct Bar {
  std::string what = {};
  double needed = 0;
  bool at_most = false;  // If false, at least.
  std::string unit = {};
  std::optional<double> value = {};  // nullopt if it was not measured.
  bool judged = true;  // False if the value cannot decide about the goal.
  // The decimals of the value as it is shown; may be negative. If not set, the
  // value has three digits.
  std::optional<int> decimals = {};

  bool Met() const {
    return value && (at_most ? *value <= needed : *value >= needed);
  }
  // Goal() returns "at least 20 times as fast". Outcome() returns "25.0: met",
  // "19.9: NOT met", "19.9: not judged" or "not measured". Text() returns all
  // three parts, as "sums, at least 20 times as fast: 25.0: met".
  std::string Goal() const;
  std::string Outcome() const;
  std::string Text() const;
};

// Returns a row for each bar: what it is, its goal, and its outcome.
Table BarsTable(const std::vector<Bar>& bars);

struct Document {
  std::string name = {};  // "lockstep.scaling"
  // The version of `data`; raised when a key changes or goes away.
  int schema_version = 1;
  std::string title = {};  // The title of a page.
  std::string about = {};  // What was measured, in one line.
  // The result in one line. Every form shows it first.
  std::string verdict = {};
  Tone verdict_tone = Tone::kPlain;
  Origin origin = {};
  // Notes that a reader needs before the numbers.
  std::vector<std::string> notes = {};
  std::vector<Section> sections = {};
  std::vector<Term> terms = {};           // How to read the sections.
  std::vector<std::string> remarks = {};  // What is missing, and why.
  std::vector<Bar> bars = {};
  std::string no_bars = {};  // The reason why there are none, if any.
  // Shown in pages only: the settings, and the method of measuring in
  // sentences.
  std::vector<Term> facts = {};
  std::vector<std::string> method = {};
  Value data = {};  // The members of the JSON after those of `origin`.
};

// Functions that make the text of numbers for reports, and that make one line
// of UTF-8 of any text.

// Returns the value with `digits` significant digits, as far as decimals can
// give them. With 4 digits, 0.12 is "0.120", 45.678 is "45.68" and 123456 is
// "123456". value: at least 0.
std::string Significant(double value, int digits);

// Returns a time in milliseconds, with four significant digits.
std::string Milliseconds(double seconds);

// Returns 0.805 as "81%", or with one decimal as "80.5%".
std::string Percent(double share, int decimals = 0);

// Returns "8 B", "4 KiB", "64 MiB" or "1 GiB". If no larger unit is exact,
// returns bytes; from ten million bytes on it then returns "9.5 MiB".
std::string Bytes(int64_t bytes);

// Returns "1 rank" or "2 ranks".
std::string Counted(int64_t count, absl::string_view what);

// Returns the text as one line of UTF-8. Runs of space become one space, and
// the ends have none. U+FFFD replaces bytes that are not UTF-8, control
// characters (C0, DEL and C1), and invisible marks and marks that change the
// direction of text. If the text has more than `most` bytes, it is cut between
// two characters and ends in " ...".
std::string OneLine(absl::string_view text, size_t most = 400);

// Returns the text as one line, of any length, that Markdown (GitHub's too)
// shows unchanged. If no character has a meaning in Markdown, the text is
// returned as it is, otherwise as a span of code. `in_table`: the text is for a
// cell of a table, so '|' is escaped.
std::string MarkdownText(absl::string_view text, bool in_table = false);

// Returns the text like MarkdownText, but always as a span of code.
std::string MarkdownCode(absl::string_view text, bool in_table = false);

// Returns the text as one line of HTML, of any length.
std::string HtmlText(absl::string_view text);

}  // namespace report
}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_DOCUMENT_H_
