// Passes arbitrary bytes to ParseSafetensors and checks the result.
#ifndef LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_
#define LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_

#include <string>
#include <vector>

namespace lockstep {

// Returns the first broken rule, or "" for none. Rules for rejected bytes: the
// error is kDataLoss or kUnimplemented, in one line with the file's name. Rules
// for accepted content: its tensors have no more bytes than the file, and
// writing and reading it again gives the same content. accepted: set to whether
// the bytes were accepted.
std::string CheckSafetensors(const std::string& bytes, bool& accepted);

// Returns the bytes of a file with this header, valid or not, and data.
std::string SafetensorsBytes(const std::string& header,
                             const std::string& data);

// Returns files for mutation; some are damaged.
std::vector<std::string> SafetensorsSeeds();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_
