// Checks the protocol's readers on arbitrary text.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_

#include <string>
#include <vector>

#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {

// Return the first broken promise, or "" if all are kept. The promises: text is
// rejected with kDataLoss, in one line with the file's name. Accepted text has
// values in the ranges of PROTOCOL.md, and stays the same when it is written
// and read again.
// accepted: set to whether the reader accepted the text.
std::string CheckCaseText(const std::string& text, bool& accepted);
std::string CheckRankOutputText(const std::string& text, bool& accepted);

// Return a case, and an output without tensors, in which no field has its
// default value.
Case ExampleCase();
RankOutput ExampleRankOutput();

// Return the valid texts that fuzzing starts from.
std::vector<std::string> CaseSeeds();
std::vector<std::string> RankOutputSeeds();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_
