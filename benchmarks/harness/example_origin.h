// Where the reports of tests are from.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_EXAMPLE_ORIGIN_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_EXAMPLE_ORIGIN_H_

#include <cstdint>
#include <string>

#include "report/document.h"

namespace lockstep::benchmarks {

inline report::Origin ExampleOrigin(const std::string& command) {
  return {.machine = {.cpu = "Example 9000",
                      .cores = 2,
                      .memory_bytes = int64_t{16} << 30,
                      .system = "Linux 6.1"},
          .command = command,
          .commit = "0123456789abcdef0123456789abcdef01234567",
          .created = "2024-05-31T16:20:00Z"};
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_EXAMPLE_ORIGIN_H_
