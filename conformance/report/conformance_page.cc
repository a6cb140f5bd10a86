// The report as a page.
#include <string>

#include "conformance/report/conformance_page_css.h"
#include "conformance/report/conformance_page_html.h"
#include "conformance/report/conformance_page_js.h"
#include "conformance/report/conformance_report.h"
#include "report/html_page.h"

namespace lockstep {

std::string FormatReportPage(const ConformanceReport& report) {
  return FormatPage({.title = "Lockstep conformance run",
                     .file = "conformance.json",
                     .sections = ConformancePageHtml(),
                     .css = ConformancePageCss(),
                     .script = ConformancePageJs(),
                     .charts = false},
                    ReportJson(report));
}

}  // namespace lockstep
