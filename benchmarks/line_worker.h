// A program that is told lines and answers with lines.
#ifndef LOCKSTEP_BENCHMARKS_LINE_WORKER_H_
#define LOCKSTEP_BENCHMARKS_LINE_WORKER_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/launch/owned_fd.h"

namespace lockstep {

// What an answer begins with. All else that the program writes, to standard
// output or error, is talk: its last line helps to say why there is no answer.
inline constexpr absl::string_view kAnswerPrefix = "lockstep: ";

// A running program of another language, say. It ends with this object, with
// the programs that it has started (its process group), and with this process.
// Not thread safe.
class LineWorker {
 public:
  // Starts `argv`, its program found as the shell finds it. A program that
  // cannot be run says so in place of its first answer. Errors: the system's.
  static absl::StatusOr<LineWorker> Start(std::vector<std::string> argv);

  LineWorker(LineWorker&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        socket_(std::move(other.socket_)),
        unread_(std::move(other.unread_)),
        talk_(std::move(other.talk_)) {}
  LineWorker& operator=(LineWorker&& other) = delete;
  ~LineWorker() { End(); }

  // Errors: kUnavailable if the program is gone.
  absl::Status Send(absl::string_view line);

  // The next answer, without its prefix and its line end. Errors: kUnavailable
  // if the program ended, which says how, and with which last words;
  // kDeadlineExceeded, however much the program talks. It is then ended.
  absl::StatusOr<std::string> Receive(absl::Time deadline);

 private:
  LineWorker(pid_t pid, OwnedFd socket)
      : pid_(pid), socket_(std::move(socket)) {}

  // Kills its group, waits for it, and says how it ended.
  std::string End();
  std::string LastWords() const;
  absl::Status DeadlineExceeded() const;
  // Takes lines from unread_ up to the first answer.
  bool TakeAnswer(std::string& answer);
  // Waits for more to read, and reads it. False at the end.
  absl::StatusOr<bool> ReadMore(absl::Time deadline);

  pid_t pid_ = -1;
  OwnedFd socket_;  // The program's standard input, output and error.
  std::string unread_;
  std::string talk_;  // The last line that was no answer.
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_LINE_WORKER_H_
