// The forms of a report. Each is the whole document; who wants less leaves it
// out of the document.
#ifndef LOCKSTEP_REPORT_WRITE_H_
#define LOCKSTEP_REPORT_WRITE_H_

#include <string>
#include <vector>

#include "report/document.h"

namespace lockstep::report {

// Plain text of kTableColumns columns. Beyond it goes only a word or a command
// that is longer, or a table that is wider. A document that grows, by rows of
// columns with a width, by sections, and at last by what stands below those,
// has a text that grows at its end.
std::string TerminalText(const Document& document);

// The terms alone, as TerminalText shows them.
std::string TermsText(const std::vector<Term>& terms);

// {"report", "schema_version", "created", "command", "commit" (null if
// unknown), "machine": {"cpu", "cores", "memory_bytes", "system"}} and the
// members of document.data. Numbers are exact; bytes that are not UTF-8 become
// U+FFFD.
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

}  // namespace lockstep::report

#endif  // LOCKSTEP_REPORT_WRITE_H_
