// Text for a terminal.
#ifndef LOCKSTEP_REPORT_WRAP_TEXT_H_
#define LOCKSTEP_REPORT_WRAP_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// The width of the tables that commands print.
inline constexpr int kTableColumns = 100;

// `text` with line ends in place of spaces so that no line is longer than
// `columns`, as far as its words allow. Ends in a line end.
std::string WrapText(absl::string_view text, int columns);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_WRAP_TEXT_H_
