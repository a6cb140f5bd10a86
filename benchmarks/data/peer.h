// The function that asks torch_peer.py for numbers.
#ifndef LOCKSTEP_BENCHMARKS_DATA_PEER_H_
#define LOCKSTEP_BENCHMARKS_DATA_PEER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/harness/torch_process.h"

namespace lockstep::benchmarks {

// Sends `question` to the peer and returns the numbers of its answer, which
// must be `word` and `numbers` numbers. Errors: TorchProcess::Ask's;
// NotUnderstood for another answer.
absl::StatusOr<std::vector<double>> AskForNumbers(TorchProcess& peer,
                                                  const std::string& question,
                                                  absl::Time deadline,
                                                  const char* word,
                                                  size_t numbers);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_DATA_PEER_H_
