// What commands show while they run.
#ifndef LOCKSTEP_REPORT_TERMINAL_H_
#define LOCKSTEP_REPORT_TERMINAL_H_

#include <string>

namespace lockstep {

// Writes the text to standard output at once.
void Print(const std::string& text);

// Says on standard error, if it is a terminal, what is under way; the next one
// takes its place, and "" leaves the line empty.
void ShowProgress(const std::string& what);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_TERMINAL_H_
