// IDX files for tests: small ones, right and wrong, and a whole data set.
#ifndef LOCKSTEP_MODELS_DATA_IDX_FILES_H_
#define LOCKSTEP_MODELS_DATA_IDX_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

using Bytes = std::vector<uint8_t>;

// The content of an IDX file of unsigned bytes.
Bytes IdxBytes(const std::vector<uint32_t>& dimensions, const Bytes& payload);

// `size` bytes that are not all alike: i * 7 modulo `modulus`.
Bytes Ramp(int64_t size, int modulus = 251);

// An empty folder of the running test case's own.
std::string MakeTestDir();

// Whole files. What goes wrong is a failure of the calling test.
void WriteBytes(const std::string& path, const Bytes& bytes);
void WriteGzip(const std::string& path, const Bytes& bytes);
Bytes ReadBytes(const std::string& path);

// Writes Fashion-MNIST's four files, plain, to an existing folder: images of
// noise in which a bright row, 2 * label + 4, tells the label. The same numbers
// give the same bytes, and a smaller data set's files begin like a larger
// one's.
void WriteIdxFiles(const std::string& dir, int64_t train, int64_t test);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_IDX_FILES_H_
