// Random changes to inputs, and seeds as files, for fuzz checks.
#ifndef LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_
#define LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_

#include <random>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace lockstep {

// One of `seeds`, of which there is at least one, with one to four small
// changes: a byte or a bit, a piece taken away or doubled, a part of another
// seed, a word that readers of JSON may trip over.
std::string Mutated(std::span<const std::string> seeds, std::mt19937& random);

// Writes each seed into a file of its own below `folder`, which is created: the
// corpus that libFuzzer starts from. Errors: the file system's.
absl::Status WriteSeeds(const std::string& folder,
                        std::span<const std::string> seeds);

// What is wrong with an error message about the file `name`; "" for nothing. It
// must begin with the name and be one printable line of at most 1000 bytes.
std::string CheckMessage(const absl::Status& error, const std::string& name);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_FUZZ_INPUTS_H_
