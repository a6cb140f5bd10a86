// The end of what a program printed, fit to be shown.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_LAST_LINES_H_
#define LOCKSTEP_CONFORMANCE_CHECK_LAST_LINES_H_

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep {

inline constexpr size_t kMostLineBytes = 200;

// The last `most` lines of `output` that are not blank, in order, in printable
// ASCII and without colours; what is no ASCII shows as '?'. A line that was
// overwritten by a carriage return counts as one, and so does an unfinished
// last one. A line of more than kMostLineBytes is cut, and ends in "...".
std::vector<std::string> LastLines(const std::string& output, size_t most);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_LAST_LINES_H_
