// The report of the command `sampler` as JSON.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_JSON_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_JSON_H_

#include <string>

#include "benchmarks/sampler/report.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {

// Raised when a key changes its meaning or goes away.
inline constexpr int kSamplerSchemaVersion = 1;

// benchmarks/README.md lists the keys.
nlohmann::ordered_json SamplerJson(const SamplerReport& report);
std::string FormatSamplerJson(const SamplerReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_JSON_H_
