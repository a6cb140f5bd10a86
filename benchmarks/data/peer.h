// Questions to torch_peer.py.
#ifndef LOCKSTEP_BENCHMARKS_DATA_PEER_H_
#define LOCKSTEP_BENCHMARKS_DATA_PEER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/harness/torch_process.h"

namespace lockstep::benchmarks {

// Asks the peer, which answers with `word` and so many numbers. Returns them.
// Errors: TorchProcess::Ask's; NotUnderstood for another answer.
absl::StatusOr<std::vector<double>> AskForNumbers(TorchProcess& peer,
                                                  const std::string& question,
                                                  absl::Time deadline,
                                                  const char* word,
                                                  size_t numbers);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_DATA_PEER_H_
