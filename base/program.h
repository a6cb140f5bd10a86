// Runs a program under a deadline and keeps what it printed.
#ifndef LOCKSTEP_BASE_PROGRAM_H_
#define LOCKSTEP_BASE_PROGRAM_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace lockstep {

struct ProgramResult {
  int exit_status = -1;  // 128 + N if signal N ended it; -1: the deadline did.
  std::string out;
  std::string err;
};

// A running program, with its output in files of a folder. Ends with SIGKILL
// what is still running when it is destroyed.
class Program {
 public:
  // dir: an existing folder, to which `out` and `err` are written.
  // environment: set besides that of this process.
  Program(const std::string& dir, const std::vector<std::string>& argv,
          const std::map<std::string, std::string>& environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }

  // Returns once the standard output holds `text`; false if the program ended,
  // or the deadline passed, before.
  bool AwaitOutput(const std::string& text, absl::Duration deadline);

  // Waits for the end; kills the program at the deadline.
  ProgramResult Wait(absl::Duration deadline);

 private:
  // Whether the program ended within the time.
  bool AwaitEnd(absl::Duration time);

  const std::string dir_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  std::optional<int> wait_status_;
};

// The process that descends from `ancestor` and has `variable` ("RANK=1") in
// its environment; -1 if there is none.
pid_t FindDescendant(pid_t ancestor, const std::string& variable);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_PROGRAM_H_
