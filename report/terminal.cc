// Standard output and error.
#include "report/terminal.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace lockstep {

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void ShowProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", what.c_str());
}

}  // namespace lockstep
