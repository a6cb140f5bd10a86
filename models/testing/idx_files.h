// A small data set in files of the kind that Fashion-MNIST comes in.
#ifndef LOCKSTEP_MODELS_TESTING_IDX_FILES_H_
#define LOCKSTEP_MODELS_TESTING_IDX_FILES_H_

#include <cstdint>
#include <string>

namespace lockstep {

// Writes the four files, plain, to an existing folder: images of noise in which
// a bright row, 2 * label + 4, tells the label. The same numbers give the same
// bytes.
void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TESTING_IDX_FILES_H_
