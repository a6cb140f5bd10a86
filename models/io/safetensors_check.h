// Gives ParseSafetensors arbitrary bytes and checks what it does.
#ifndef LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_
#define LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_

#include <string>
#include <vector>

namespace lockstep {

// The first promise that was not kept, "" for none: bytes that are refused are
// refused as kDataLoss or kUnimplemented, in one line with the file's name;
// content that is accepted has no more bytes than the file, and is the same
// when it was written and read again.
// accepted: set to whether the bytes were.
std::string CheckSafetensors(const std::string& bytes, bool& accepted);

// A file with this header, whatever it is, and data.
std::string SafetensorsBytes(const std::string& header,
                             const std::string& data);

// Files to start from; some are damaged.
std::vector<std::string> SafetensorsSeeds();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_IO_SAFETENSORS_CHECK_H_
