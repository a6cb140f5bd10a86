#include "report/terminal.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void ShowProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

std::string WrapText(absl::string_view text, int columns) {
  std::string wrapped;
  size_t line = 0;
  for (const absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool fits = line + 1 + word.size() <= static_cast<size_t>(columns);
    if (line > 0) wrapped += fits ? ' ' : '\n';
    line = line > 0 && fits ? line + 1 + word.size() : word.size();
    absl::StrAppend(&wrapped, word);
  }
  return wrapped + "\n";
}

}  // namespace lockstep
