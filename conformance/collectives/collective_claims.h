// What the tests of collectives tell the report.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_

#include <string>

namespace lockstep {

// The claim that all operations are right to the bit, of each type, with as
// many cases as CollectiveCases has. From the beginning of a test that asks all
// of them to its end.
class CollectiveClaims {
 public:
  CollectiveClaims(const std::string& backend, int world_size)
      : backend_(backend), world_size_(world_size) {}
  CollectiveClaims(const CollectiveClaims&) = delete;
  CollectiveClaims& operator=(const CollectiveClaims&) = delete;
  ~CollectiveClaims();

 private:
  const std::string backend_;
  const int world_size_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CLAIMS_H_
