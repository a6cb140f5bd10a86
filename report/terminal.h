// What commands show while they run, and text for a terminal.
#ifndef LOCKSTEP_REPORT_TERMINAL_H_
#define LOCKSTEP_REPORT_TERMINAL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Writes the text to standard output at once.
void Print(const std::string& text);

// Says on standard error, if it is a terminal, what is under way; the next one
// takes its place, and "" leaves the line empty.
void ShowProgress(const std::string& what);

// The width of the tables that commands print.
inline constexpr int kTableColumns = 100;

// `text` with line ends in place of spaces so that no line is longer than
// `columns`, as far as its words allow. Ends in a line end.
std::string WrapText(absl::string_view text, int columns);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_TERMINAL_H_
