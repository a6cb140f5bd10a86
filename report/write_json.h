// The machine as the reports' JSON has it.
#ifndef LOCKSTEP_REPORT_WRITE_JSON_H_
#define LOCKSTEP_REPORT_WRITE_JSON_H_

#include "nlohmann/json.hpp"
#include "report/machine.h"

namespace lockstep {

// {"cpu", "cores", "memory_bytes", "system"}; the pages' script reads it.
nlohmann::ordered_json MachineJson(const Machine& machine);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_WRITE_JSON_H_
