// Gives the readers of data sets arbitrary bytes and checks what they do.
#ifndef LOCKSTEP_MODELS_DATA_DATA_CHECK_H_
#define LOCKSTEP_MODELS_DATA_DATA_CHECK_H_

#include <string>
#include <vector>

namespace lockstep {

// Each returns the first promise that was not kept, "" for none. Bytes that are
// refused are refused with an error of a kind that the reader's declaration
// names, in one line with the file's name. `accepted`: set to whether they were
// not.
//
// Images that are accepted have one or three channels and no more pixels than
// are allowed, are the same when decoded again, in a region too, and come back
// from a PNG. The checksums of a PNG's chunks are mended first: else no change
// would get past them.
std::string CheckJpeg(const std::string& bytes, bool& accepted);
std::string CheckPng(const std::string& bytes, bool& accepted);

// The list, written line by line, is the same when it is read again.
std::string CheckImageList(const std::string& text, bool& accepted);

// Every byte of a pixel is where it should be, and labels are below 10.
std::string CheckCifar10(const std::string& bytes, bool& accepted);

// A reader's check, and files to start from, some of which are damaged.
struct DataCheck {
  const char* name;
  std::string (*check)(const std::string& bytes, bool& accepted);
  std::vector<std::string> seeds;
};
std::vector<DataCheck> DataChecks();

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_DATA_CHECK_H_
