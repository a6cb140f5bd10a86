// The page's own parts.
#include "benchmarks/scaling/html.h"

#include <string>

#include "benchmarks/scaling/json.h"
#include "benchmarks/scaling/scaling_page_css.h"
#include "benchmarks/scaling/scaling_page_html.h"
#include "benchmarks/scaling/scaling_page_js.h"
#include "report/html_page.h"

namespace lockstep::benchmarks {

std::string FormatScalingHtml(const ScalingReport& report) {
  return FormatPage({.title = "Lockstep scaling report",
                     .file = "scaling.json",
                     .sections = ScalingPageHtml(),
                     .css = ScalingPageCss(),
                     .script = ScalingPageJs()},
                    ScalingJson(report));
}

}  // namespace lockstep::benchmarks
