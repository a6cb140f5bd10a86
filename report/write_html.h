// Writes a report as an HTML page.
#ifndef LOCKSTEP_REPORT_WRITE_HTML_H_
#define LOCKSTEP_REPORT_WRITE_HTML_H_

#include <string>

#include "report/document.h"

namespace lockstep::report {

// Returns an HTML page in one file that loads nothing. The file contains its
// style and, if the document has charts, Chart.js. No string of the document
// can break out of its element.
std::string HtmlPage(const Document& document);

}  // namespace lockstep::report

#endif  // LOCKSTEP_REPORT_WRITE_HTML_H_
