// The scaling report as JSON; benchmarks/README.md documents the keys.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_JSON_H_
#define LOCKSTEP_BENCHMARKS_SCALING_JSON_H_

#include <string>

#include "benchmarks/scaling/report.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {

// Raised whenever a key changes its meaning or goes away.
inline constexpr int kScalingSchemaVersion = 1;

// Keys in the order in which a reader wants them.
nlohmann::ordered_json ScalingJson(const ScalingReport& report);

// As a file's text, indented. Bytes that are not UTF-8 become U+FFFD.
std::string FormatScalingJson(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_JSON_H_
