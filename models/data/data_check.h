// Passes arbitrary bytes to the readers of data sets and checks the results.
#ifndef LOCKSTEP_MODELS_DATA_DATA_CHECK_H_
#define LOCKSTEP_MODELS_DATA_DATA_CHECK_H_

#include <string>
#include <vector>

namespace lockstep {

// Each function returns the first broken rule, or "" for none. Rule for
// rejected bytes: the error has a code that the reader's declaration names, in
// one line with the file's name. `accepted`: set to whether the bytes were
// accepted.
//
// Rules for accepted images: they have one or three channels and no more pixels
// than are allowed. Decoding them again, in a region too, gives the same
// pixels, and so does writing and reading a PNG. The checksums of a PNG's
// chunks are corrected first, since otherwise every change would be rejected
// there.
std::string CheckJpeg(const std::string& bytes, bool& accepted);
std::string CheckPng(const std::string& bytes, bool& accepted);

// The list, written line by line, is the same when it is read again.
std::string CheckImageList(const std::string& text, bool& accepted);

// Every byte of a pixel is in its place, and labels are below 10.
std::string CheckCifar10(const std::string& bytes, bool& accepted);

// A reader's check and the initial inputs, some of which are damaged.
struct DataCheck {
  const char* name;
  std::string (*check)(const std::string& bytes, bool& accepted);
  std::vector<std::string> seeds;
};
std::vector<DataCheck> DataChecks();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_DATA_CHECK_H_
