// The checker's report as a page.
#include <string>

#include "conformance/check/check_page_css.h"
#include "conformance/check/check_page_html.h"
#include "conformance/check/check_page_js.h"
#include "conformance/check/check_report.h"
#include "report/html_page.h"

namespace lockstep {

std::string FormatCheckPage(const CheckReport& report) {
  return FormatPage({.title = "Lockstep conformance report",
                     .file = "check.json",
                     .sections = CheckPageHtml(),
                     .css = CheckPageCss(),
                     .script = CheckPageJs()},
                    CheckJson(report));
}

}  // namespace lockstep
