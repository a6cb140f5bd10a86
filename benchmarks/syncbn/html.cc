// The page's own parts.
#include "benchmarks/syncbn/html.h"

#include <string>

#include "benchmarks/syncbn/json.h"
#include "benchmarks/syncbn/syncbn_page_css.h"
#include "benchmarks/syncbn/syncbn_page_html.h"
#include "benchmarks/syncbn/syncbn_page_js.h"
#include "report/html_page.h"

namespace lockstep::benchmarks {

std::string FormatSyncBnHtml(const SyncBnReport& report) {
  return FormatPage({.title = "Lockstep SyncBN report",
                     .file = "syncbn.json",
                     .sections = SyncBnPageHtml(),
                     .css = SyncBnPageCss(),
                     .script = SyncBnPageJs()},
                    SyncBnJson(report));
}

}  // namespace lockstep::benchmarks
