// The flags of nccl-tests, for users who type them out of habit.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::benchmarks {

// The command line with flags of nccl-tests as those of `allreduce`: "-b 8",
// "-b8", "--minbytes 8" and "--minbytes=8" become "--min_bytes=8", and the
// names of types change as the flags do. Other arguments stay as they are.
// Errors: kInvalidArgument for a flag without a value, and for a flag that
// `allreduce` lacks, with what to type instead.
absl::StatusOr<std::vector<std::string>> TranslateNcclTestsFlags(
    std::span<char* const> argv);

// "-b --min_bytes, -e --max_bytes, ...", for --help.
std::string NcclTestsFlagsText();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_NCCL_TESTS_FLAGS_H_
