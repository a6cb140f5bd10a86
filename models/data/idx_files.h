// IDX files for tests: small files, valid and damaged, and a whole data set.
#ifndef LOCKSTEP_MODELS_DATA_IDX_FILES_H_
#define LOCKSTEP_MODELS_DATA_IDX_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

using Bytes = std::vector<uint8_t>;

// Returns the content of an IDX file of unsigned bytes.
Bytes IdxBytes(const std::vector<uint32_t>& dimensions, const Bytes& payload);

// Returns `size` bytes with different values: i * 7 modulo `modulus`.
Bytes Ramp(int64_t size, int modulus = 251);

// Creates an empty folder that belongs to the running test case.
std::string MakeTestDir();

// Write and read whole files. An error is a failure of the calling test.
void WriteBytes(const std::string& path, const Bytes& bytes);
void WriteGzip(const std::string& path, const Bytes& bytes);
Bytes ReadBytes(const std::string& path);

// Writes Fashion-MNIST's four files, uncompressed, to an existing folder.
// Images are noise with one bright row, 2 * label + 4, which shows the label.
// The same numbers give the same bytes. A smaller data set's images are the
// first images of a larger one.
void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IDX_FILES_H_
