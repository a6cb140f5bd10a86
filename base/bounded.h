// The reference result that tests compare against.
#ifndef LOCKSTEP_BASE_BOUNDED_H_
#define LOCKSTEP_BASE_BOUNDED_H_

#include <cstdint>
#include <vector>

namespace lockstep {

// Exact values and, for each value, the largest error that an implementation
// may have.
struct Bounded {
  explicit Bounded(int64_t size) : value(size), bound(size) {}

  int64_t size() const { return static_cast<int64_t>(value.size()); }

  std::vector<double> value;
  std::vector<double> bound;  // At least 0.
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_BOUNDED_H_
