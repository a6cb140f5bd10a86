// From the end, line by line.
#include "conformance/check/last_lines.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"

namespace lockstep {
namespace {

constexpr char kEscape = '\x1b';

// The byte after an escape sequence of a terminal, such as a colour's, that
// begins at `begin`.
size_t EndOfEscape(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  if (end == text.size() || text[end] != '[') return end;
  ++end;
  while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
  return std::min(end + 1, text.size());
}

std::string Printable(const std::string& line) {
  constexpr size_t kDots = 3;
  std::string printable;
  for (size_t i = 0; i < line.size();) {
    const char c = line[i];
    if (c == kEscape) {
      i = EndOfEscape(line, i);
      continue;
    }
    const unsigned char byte = static_cast<unsigned char>(c);
    printable += c == '\t' ? ' ' : absl::ascii_isprint(byte) ? c : '?';
    ++i;
  }
  absl::StripAsciiWhitespace(&printable);
  if (printable.size() > kMostLineBytes) {
    printable.resize(kMostLineBytes - kDots);
    printable.append(kDots, '.');
  }
  return printable;
}

}  // namespace

std::vector<std::string> LastLines(const std::string& output, size_t most) {
  std::vector<std::string> lines;
  size_t end = output.size();
  while (end > 0 && lines.size() < most) {
    const size_t before = output.find_last_of("\n\r", end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    std::string line = Printable(output.substr(begin, end - begin));
    if (!line.empty()) lines.push_back(std::move(line));
    end = begin == 0 ? 0 : begin - 1;
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace lockstep
