// Translates the flags of nccl-tests, for users who know them.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::benchmarks {

// Returns the command line with the flags of nccl-tests replaced by those of
// `allreduce`: "-b 8", "-b8", "--minbytes 8" and "--minbytes=8" become
// "--min_bytes=8". The names of types are replaced too. Other arguments stay as
// they are. Errors: kInvalidArgument for a flag without a value, and for a flag
// that `allreduce` does not have; the message then says what to use instead.
absl::StatusOr<std::vector<std::string>> TranslateNcclTestsFlags(
    std::span<char* const> argv);

// Returns "-b --min_bytes, -e --max_bytes, ...", for --help.
std::string NcclTestsFlagsText();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_
