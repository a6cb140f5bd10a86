// Mutates inputs for fuzz checks, and writes seeds to files.
#ifndef LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_
#define LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_

#include <random>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Returns one of `seeds` with one to four small changes. `seeds` must not be
// empty. A change is one byte or bit, a piece removed or repeated, a piece of
// another seed, or a word that is difficult for readers of JSON.
std::string MutateSeed(std::span<const std::string> seeds,
                       std::mt19937& random);

// Writes each seed to its own file below `folder`, which is created if it does
// not exist. The files are libFuzzer's initial corpus. Errors: the file
// system's.
absl::Status WriteSeeds(const std::string& folder,
                        std::span<const std::string> seeds);

// Returns what is wrong with an error message about the file `name`, or "" for
// nothing. The message must begin with the name and be one printable line of at
// most 1000 bytes.
std::string CheckMessage(const absl::Status& error, const std::string& name);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_
