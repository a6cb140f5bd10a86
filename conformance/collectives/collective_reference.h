// What a collective call must give, computed by one rank that knows all inputs.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/collectives/collective_case.h"

namespace lockstep {

using Bytes = std::vector<std::byte>;

// The input of one rank; the source's for kSend.
Bytes InputOf(const CollectiveCase& call, int world_size, int rank);

// Elements that each rank gives to an AllGather.
std::vector<int64_t> CountsOf(const CollectiveCase& call, int world_size);

// In which order a group adds.
enum class Order {
  kBySize,  // As algorithms/order.h states.
  kRing,    // As it states for large sizes, whatever the size.
};

// Which inputs a reduction takes.
struct Taken {
  std::vector<int>
      ranks;       // In place of each rank's, this one's; empty: its own.
  int twice = -1;  // This rank's is reduced with itself first; -1: none.
};

// The output of one rank. None where a rank gets no output: whatever it has
// there must stay as it is. `taken` is for what a group might get wrong.
std::optional<Bytes> OutputOf(const CollectiveCase& call, Order order,
                              int world_size, int rank,
                              const Taken& taken = {});

// The first element that differs, as text; none if there is none. Two NaN are
// equal, other values only if all their bits are.
std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_
