// One recorder a type.
#include "conformance/collectives/collective_claims.h"

#include <algorithm>
#include <vector>

#include "collectives/data_type.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep {

CollectiveClaims::~CollectiveClaims() {
  const std::vector<CollectiveCase> cases = CollectiveCases(world_size_);
  for (const DataType type : kAllDataTypes) {
    ClaimRecorder recorder({"collectives", backend_, world_size_, Name(type)});
    recorder.AddExact(
        std::count_if(cases.begin(), cases.end(),
                      [type](const auto& call) { return call.type == type; }));
  }
}

}  // namespace lockstep
