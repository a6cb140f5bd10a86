// The report of the command `allreduce` as JSON.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_JSON_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_JSON_H_

#include <string>

#include "benchmarks/all_reduce/report.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {

// Raised when a key changes its meaning or goes away.
inline constexpr int kAllReduceSchemaVersion = 1;

// benchmarks/README.md lists the keys. Those of a result that nccl-tests has
// too have its names, units and values: times in microseconds, bandwidths in
// GB/s, types "float", "half", ...
nlohmann::ordered_json AllReduceJson(const AllReduceReport& report);
std::string FormatAllReduceJson(const AllReduceReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_JSON_H_
