// The scaling report as one HTML file that needs no other.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_HTML_H_
#define LOCKSTEP_BENCHMARKS_SCALING_HTML_H_

#include <string>

#include "benchmarks/scaling/report.h"

namespace lockstep::benchmarks {

// The page of scaling_page.html with its style, its script, Chart.js and the
// report's JSON inside. It loads nothing.
std::string FormatScalingHtml(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_HTML_H_
