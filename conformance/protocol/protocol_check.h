// Gives the protocol's readers arbitrary text and checks what they do.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_

#include <string>
#include <vector>

#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {

// The first promise that was not kept, "" for none: text that is refused is
// refused as kDataLoss, in one line with the file's name; what is accepted is
// in the ranges of PROTOCOL.md, and the same when it was written and read
// again.
// accepted: set to whether the text was.
std::string CheckCaseText(const std::string& text, bool& accepted);
std::string CheckRankOutputText(const std::string& text, bool& accepted);

// A case, and an output without tensors, in which no field has its default.
Case ExampleCase();
RankOutput ExampleRankOutput();

// Texts to start from, all of them good.
std::vector<std::string> CaseSeeds();
std::vector<std::string> RankOutputSeeds();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_PROTOCOL_CHECK_H_
