// Text that a test, a folder or a machine wrote, made fit to be shown.
#ifndef LOCKSTEP_CONFORMANCE_REPORT_FOREIGN_TEXT_H_
#define LOCKSTEP_CONFORMANCE_REPORT_FOREIGN_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// The text in one line of UTF-8: runs of space as one, none at its ends; U+FFFD
// for what is not UTF-8, for control characters (C0, DEL and C1) and for marks
// that change the direction of text or cannot be seen. Text of more than `most`
// bytes is cut between two characters, and ends in " ...".
std::string OneLine(absl::string_view text, size_t most = 400);

// OneLine(text), but of any length, so that Markdown, GitHub's too, shows it as
// it is: without change if none of its characters has a meaning, else as a span
// of code. `in_table`: in a cell of a table, where a bar is written otherwise.
std::string MarkdownText(absl::string_view text, bool in_table = false);

// The same, always as a span of code.
std::string MarkdownCode(absl::string_view text, bool in_table = false);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REPORT_FOREIGN_TEXT_H_
