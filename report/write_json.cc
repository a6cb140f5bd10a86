// The machine's fields by name.
#include "report/write_json.h"

#include "nlohmann/json.hpp"
#include "report/machine.h"

namespace lockstep {

nlohmann::ordered_json MachineJson(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_bytes", machine.memory_bytes},
          {"system", machine.system}};
}

}  // namespace lockstep
