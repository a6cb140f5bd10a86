// Line splitting for LinePrefixer.
#include "collectives/launch/line_prefixer.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {

std::string LinePrefixer::Add(absl::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = kMaxLineBytes - partial_.size();
    if (std::min(end, bytes.size()) > room) {
      absl::StrAppend(&lines, prefix_, partial_, bytes.substr(0, room), "\n");
      partial_.clear();
      bytes.remove_prefix(room);
    } else if (end == absl::string_view::npos) {
      absl::StrAppend(&partial_, bytes);
      break;
    } else {
      absl::StrAppend(&lines, prefix_, partial_, bytes.substr(0, end + 1));
      partial_.clear();
      bytes.remove_prefix(end + 1);
    }
  }
  return lines;
}

std::string LinePrefixer::Finish() {
  if (partial_.empty()) return "";
  std::string line = absl::StrCat(prefix_, partial_, "\n");
  partial_.clear();
  return line;
}

}  // namespace lockstep
