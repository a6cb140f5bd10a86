// Numbers as the text that reports show, and text as one line of UTF-8.
#ifndef LOCKSTEP_REPORT_FORMAT_H_
#define LOCKSTEP_REPORT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep::report {

// With `digits` significant digits, as far as decimals can do that: at 4, 0.12
// is "0.120", 45.678 "45.68" and 123456 "123456". value: at least 0.
std::string Significant(double value, int digits);

// 0.805 as "81%", or with one decimal as "80.5%".
std::string Percent(double share, int decimals = 0);

// 1234567 as "1,234,567".
std::string Grouped(int64_t count);

// "8 B", "4 KiB", "64 MiB", "1 GiB"; bytes where that is not exact, and for ten
// millions or more of them "9.5 MiB".
std::string Bytes(int64_t bytes);

// "1 rank", "2 ranks".
std::string Counted(int64_t count, absl::string_view what);

// The text in one line of UTF-8: runs of space as one, none at its ends; U+FFFD
// for what is not UTF-8, for control characters (C0, DEL and C1) and for marks
// that change the direction of text or cannot be seen. Text of more than `most`
// bytes is cut between two characters, and ends in " ...".
std::string OneLine(absl::string_view text, size_t most = 400);

// One line of the text, of any length, so that Markdown, GitHub's too, shows it
// as it is: without change if none of its characters has a meaning, else as a
// span of code. `in_table`: in a cell of a table, where a bar is written
// otherwise.
std::string MarkdownText(absl::string_view text, bool in_table = false);

// The same, always as a span of code.
std::string MarkdownCode(absl::string_view text, bool in_table = false);

// One line of the text, of any length, as HTML shows it.
std::string HtmlText(absl::string_view text);

}  // namespace lockstep::report

#endif  // LOCKSTEP_REPORT_FORMAT_H_
