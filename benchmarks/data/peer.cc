#include "benchmarks/data/peer.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/harness/torch_process.h"

namespace lockstep::benchmarks {

absl::StatusOr<std::vector<double>> AskForNumbers(TorchProcess& peer,
                                                  const std::string& question,
                                                  absl::Time deadline,
                                                  const char* word,
                                                  size_t numbers) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer,
                            peer.Ask(question, deadline));
  const std::vector<std::string> words = absl::StrSplit(answer, ' ');
  std::vector<double> values(numbers);
  bool understood = words.size() == numbers + 1 && words[0] == word;
  for (size_t i = 0; understood && i < numbers; ++i) {
    understood = absl::SimpleAtod(words[i + 1], &values[i]);
  }
  if (!understood) return NotUnderstood(answer);
  return values;
}

}  // namespace lockstep::benchmarks
