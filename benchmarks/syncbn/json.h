// The report of the command `syncbn` as JSON.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_JSON_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_JSON_H_

#include <string>

#include "benchmarks/syncbn/report.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {

// Raised when a key changes its meaning or goes away.
inline constexpr int kSyncBnSchemaVersion = 2;

// benchmarks/README.md lists the keys.
nlohmann::ordered_json SyncBnJson(const SyncBnReport& report);
std::string FormatSyncBnJson(const SyncBnReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_JSON_H_
