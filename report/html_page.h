// What the HTML reports have in common: one file that needs no other.
#ifndef LOCKSTEP_REPORT_HTML_PAGE_H_
#define LOCKSTEP_REPORT_HTML_PAGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// What a page has of its own, in what all share: report_page.html around it,
// report_page.css and report_page.js before it, and Chart.js if it draws.
struct PageParts {
  absl::string_view title;
  absl::string_view file;      // Of the same numbers, for who has no scripts.
  absl::string_view sections;  // HTML below the heading.
  absl::string_view css;
  absl::string_view script;
  bool charts = true;  // Else without Chart.js, of 200 KB.
};

// The page, with `report` as the script's constant of that name. It loads
// nothing.
std::string FormatPage(const PageParts& parts,
                       const nlohmann::ordered_json& report);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_HTML_PAGE_H_
