// Writes a report in all its forms: on the terminal, and to the files that
// --output_dir and --json name.
#ifndef LOCKSTEP_REPORT_WRITE_H_
#define LOCKSTEP_REPORT_WRITE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "report/document.h"

namespace lockstep {

// Writes the text to standard output and flushes it.
void Print(const std::string& text);

// Shows on standard error, if it is a terminal, what is under way. The text
// replaces the previous one; "" clears the line.
void ShowProgress(const std::string& what);

// The width, in characters, of the tables that commands print.
inline constexpr int kTableColumns = 100;

namespace report {

// Each of the following forms shows the whole document.

// Returns plain text of kTableColumns columns. Only longer words, longer
// commands and wider tables exceed that width. A document may grow by rows (of
// tables whose columns have a width), by sections, and finally by the parts
// below the sections. The text of the larger document then begins with the text
// of the smaller one.
std::string TerminalText(const Document& document);

// Returns only the terms, as TerminalText shows them.
std::string TermsText(const std::vector<Term>& terms);

// Returns the JSON object {"report", "schema_version", "created", "command",
// "commit" (null if unknown), "machine": {"cpu", "cores", "memory_bytes",
// "system", "others_share"}, for a run on several hosts "hosts": [{"name",
// "ranks", "cores"}]}, followed by the members of document.data. If the
// document has bars, "bars" follows: [{"what", "at_least" or "at_most", "unit",
// "value", "met"}]. If it gives a reason for having none, "no_bar" holds that
// reason.
//
// "value" is null if it was not measured. "met" is null in that case, and if
// the bar is not judged. "others_share" is null if it is unknown. Numbers are
// exact. Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const Document& document);

// Returns Markdown for a pull request.
std::string MarkdownPage(const Document& document);

// Shows a growing report on standard output.
class GrowingReport {
 public:
  // Prints the part of the document's TerminalText that was not yet printed.
  void Show(const Document& document);

 private:
  std::string shown_;
};

}  // namespace report

// Creates the folder if it does not exist. Checks before a long run that the
// folder can be written to. Error: kPermissionDenied, with a message that
// begins with --output_dir.
absl::Status MakeOutputFolder(const std::string& folder);

// Checks before a long run that the JSON file can be written at its end.
// `path`: as the user gave it; an empty path is accepted. Errors:
// kInvalidArgument, naming --json.
absl::Status CheckJsonPath(const std::string& path);

// Writes the file and says so on standard output; does nothing if the path is
// empty. Errors: the file system's.
absl::Status WriteJsonFile(const std::string& path, const std::string& json);

// Writes NAME.json, NAME.html and NAME.md to the folder and says so on standard
// output. `page`: the document for the HTML page, if the page shows more than
// the other forms. Errors: the file system's.
absl::Status WriteReport(const std::string& folder, const std::string& name,
                         const report::Document& document,
                         const report::Document* page = nullptr);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_WRITE_H_
