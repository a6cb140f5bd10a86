// What the tests of all HTML reports ask of a page.
#ifndef LOCKSTEP_REPORT_PAGE_CHECKS_H_
#define LOCKSTEP_REPORT_PAGE_CHECKS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// How often `part` occurs in `text`.
int CountParts(absl::string_view text, absl::string_view part);

// The page without Chart.js, whose comments name its home page.
std::string WithoutChartJs(absl::string_view page);

// What the page has that loads something, or empty.
std::string Loader(absl::string_view page);

// The name of an element that the page does not open as often as it closes it,
// or empty.
std::string OpenElements(absl::string_view page);

// Expects a whole page that loads nothing and closes its elements; with
// Chart.js and its charts if it has `charts`, else without.
void ExpectWholePage(const std::string& page, bool charts = true);

// Expects that the page has as many elements and comments as `plain`, the page
// of a report without hostile strings.
void ExpectSameElements(const std::string& page, const std::string& plain);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_PAGE_CHECKS_H_
