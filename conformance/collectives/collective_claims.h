// What the tests of collectives tell the report.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_

#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep {

// The claim that all operations are right to the bit, of each type. From the
// beginning of a test that asks it to its end.
class CollectiveClaims {
 public:
  CollectiveClaims(const std::string& backend, int world_size);

  // What CheckCollectives gave on each rank: of each type, as many cases as
  // every rank was asked. An error counts as none.
  void Add(std::span<const absl::StatusOr<std::string>> asked);

 private:
  std::map<DataType, std::unique_ptr<ClaimRecorder>> recorders_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_
