// The scaling report as one HTML file that needs no other.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_HTML_H_
#define LOCKSTEP_BENCHMARKS_SCALING_HTML_H_

#include <string>

#include "absl/strings/string_view.h"
#include "benchmarks/scaling_report.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// The page of scaling_page.html with its style, its script, Chart.js and the
// report's JSON inside. It loads nothing.
std::string FormatScalingHtml(const ScalingReport& report);

// `json` as a JavaScript expression that is safe inside a <script> element,
// whatever its strings say: ASCII only, and without '<', so that no string can
// end the element or begin a comment. Bytes that are not UTF-8 become U+FFFD.
std::string JsonForScript(const nlohmann::ordered_json& json);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SCALING_HTML_H_
