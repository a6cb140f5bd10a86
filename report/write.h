// The forms of a report, what commands show on a terminal, and the files that
// --output_dir and --json name.
#ifndef LOCKSTEP_REPORT_WRITE_H_
#define LOCKSTEP_REPORT_WRITE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "report/document.h"

namespace lockstep {

// Writes the text to standard output at once.
void Print(const std::string& text);

// Shows on standard error, if it is a terminal, what is under way, in place of
// what was shown before; "" clears the line.
void ShowProgress(const std::string& what);

// The width of the tables that commands print.
inline constexpr int kTableColumns = 100;

namespace report {

// Each form shows the whole document.

// Plain text of kTableColumns columns; only longer words and commands and wider
// tables exceed them. When a document grows by rows (of tables whose columns
// have a width), by sections, and last by what stands below those, its new text
// begins with the old one.
std::string TerminalText(const Document& document);

// The terms alone, as TerminalText shows them.
std::string TermsText(const std::vector<Term>& terms);

// {"report", "schema_version", "created", "command", "commit" (null if
// unknown), "machine": {"cpu", "cores", "memory_bytes", "system",
// "others_share"}, for a run on several hosts "hosts": [{"name", "ranks",
// "cores"}]}, the members of document.data, and, where there are such, "bars":
// [{"what", "at_least" or "at_most", "unit", "value", "met"}], and "no_bar",
// the reason why there are none. "value" is null if it was not measured, "met"
// also if the bar is not judged, "others_share" if it is unknown. Numbers are
// exact; bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Document& document);

// For a pull request.
std::string MarkdownPage(const Document& document);

// One file that loads nothing, with its style and, if it has charts, Chart.js
// inside. No string of the document can break out of its element.
std::string HtmlPage(const Document& document);

// Shows on standard output a report that grows.
class GrowingReport {
 public:
  // Prints what TerminalText of the document has beyond that of the last one.
  void Show(const Document& document);

 private:
  std::string shown_;
};

}  // namespace report

// Makes the folder, if it is not there, and finds out before a long run whether
// it can be written to. Error: kPermissionDenied, beginning with --output_dir.
absl::Status MakeOutputFolder(const std::string& folder);

// Finds out before a long run what would otherwise fail at its end. `path`: as
// the user gave it; empty is fine. Errors: kInvalidArgument, naming --json.
absl::Status CheckJsonPath(const std::string& path);

// Writes the file, unless the path is empty, and says so on standard output.
// Errors: the file system's.
absl::Status WriteJsonFile(const std::string& path, const std::string& json);

// Writes NAME.json, NAME.html and NAME.md to the folder, and says so on
// standard output. `page`: the document that the HTML shows, if it shows more.
// Errors: the file system's.
absl::Status WriteReport(const std::string& folder, const std::string& name,
                         const report::Document& document,
                         const report::Document* page = nullptr);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_WRITE_H_
