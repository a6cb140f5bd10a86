// Puts the embedded files and the report together.
#include "report/html_page.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "report/chart_js.h"
#include "report/report_page_css.h"
#include "report/report_page_html.h"
#include "report/report_page_js.h"
#include "report/write_json.h"

namespace lockstep {
namespace {

// Replaces each marker, in the order in which the page holds them, by its
// content, in which nothing is replaced.
template <size_t kCount>
std::string Fill(
    absl::string_view page,
    const std::array<std::pair<absl::string_view, absl::string_view>, kCount>&
        contents) {
  std::string filled;
  for (const auto& [marker, content] : contents) {
    const size_t at = page.find(marker);
    absl::StrAppend(&filled, page.substr(0, at), content);
    page.remove_prefix(at + marker.size());
  }
  return absl::StrCat(filled, page);
}

}  // namespace

std::string FormatPage(const PageParts& parts,
                       const nlohmann::ordered_json& report) {
  const std::string json = JsonForScript(report);
  const std::string css = absl::StrCat(ReportPageCss(), parts.css);
  const std::string script = absl::StrCat(ReportPageJs(), parts.script);
  return Fill<8>(ReportPageHtml(),
                 {{{"/*TITLE*/", parts.title},
                   {"/*STYLE*/", css},
                   {"/*TITLE*/", parts.title},
                   {"/*FILE*/", parts.file},
                   {"/*SECTIONS*/", parts.sections},
                   {"/*CHART_JS*/", parts.charts ? ChartJs() : ""},
                   {"/*REPORT*/", json},
                   {"/*SCRIPT*/", script}}});
}

}  // namespace lockstep
