// A report without a form: what a command found and what a reader must know to
// believe it. report/write.h makes of it a text for a terminal, JSON, Markdown
// and a page.
#ifndef LOCKSTEP_REPORT_DOCUMENT_H_
#define LOCKSTEP_REPORT_DOCUMENT_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "report/machine.h"

namespace lockstep::report {

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
  bool left = false;  // Text begins at the left edge; numbers end at the right.
};

// A row with fewer cells than columns ends in one that takes the columns that
// are left.
struct Table {
  std::vector<Column> columns = {};
  std::vector<std::vector<Cell>> rows = {};
};

// What a chart draws at each of its places, along the x axis. One without a
// value is left out.
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
  // If not empty: where the places lie on a straight axis, or on a logarithmic
  // one where they are far apart, on which y is logarithmic too.
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
  std::string about = {};  // What was measured here, in one line.
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

  bool Met() const {
    return value && (at_most ? *value <= needed : *value >= needed);
  }
  // "at least 20 times as fast"; "25.0: met", "19.9: NOT met", "not measured".
  std::string Goal() const;
  std::string Outcome() const;
};

// Where the numbers are from.
struct Origin {
  Machine machine = {};
  std::string command = {};  // As its user typed it.
  std::string commit = {};   // Empty if unknown.
  std::string created = {};  // UTC, ISO 8601.
};

struct Document {
  std::string name = {};   // "lockstep.scaling"
  int schema_version = 1;  // Of `data`: raised when a key changes or goes away.
  std::string title = {};  // Of a page.
  std::string about = {};  // What was measured, in one line.
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

}  // namespace lockstep::report

#endif  // LOCKSTEP_REPORT_DOCUMENT_H_
