// Carries the output of all ranks to the launcher's own output, line by line,
// and to a log for each rank.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_OUTPUT_FORWARDER_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_OUTPUT_FORWARDER_H_

#include <poll.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"

namespace lockstep {

// Collects the bytes of one stream and returns its complete lines, each with
// the prefix in front. A line longer than kMaxLineBytes is broken there, so
// that a stream without line ends cannot fill the memory. Not thread safe.
class LinePrefixer {
 public:
  static constexpr int kMaxLineBytes = 1 << 20;

  explicit LinePrefixer(absl::string_view prefix) : prefix_(prefix) {}

  // Takes the next bytes of the stream, split anywhere. Returns the lines that
  // they complete, each with prefix and line end; "" if no line is complete.
  // Cost: linear in the bytes taken.
  std::string Add(absl::string_view bytes);

  // Ends the stream. Returns the last line, with prefix and a line end, if it
  // had no line end; else "".
  std::string Finish();

 private:
  std::string prefix_;
  std::string partial_;  // The bytes since the last line end.
};

struct RankLog {
  std::string path;
  OwnedFd file;
};

// Opens the log of each rank for appending, emptied: <folder>/rank-<rank>.log,
// numbered from first_rank on. Creates the folder, and the folders above it, if
// they are missing. Errors: kInvalidArgument, naming the path, if a folder or
// file cannot be created; files that were opened before the error remain.
absl::StatusOr<std::vector<RankLog>> OpenRankLogs(const std::string& folder,
                                                  int world_size,
                                                  int first_rank = 0);

// The descriptors that one rank writes to.
struct RankStreams {
  OwnedFd out;
  OwnedFd err;
};

// Options for the ranks' output.
struct OutputOptions {
  // Writes whole lines, each with its rank in front ("[1] text"). If false, the
  // bytes are written as they arrive, so that lines of two ranks may mix.
  bool prefix = true;
  int first_rank = 0;  // The number in front of the first rank's lines.
  // By rank, or empty: files that get the bytes of both streams as they arrive.
  std::vector<RankLog> logs = {};
  // If not 0, the last keep_bytes bytes of each rank, both streams together,
  // are kept for TakeKept(). Nothing is then written to the caller's
  // descriptors.
  size_t keep_bytes = 0;
};

// Reads one pipe per rank and stream, and writes the bytes to two descriptors
// of the caller. Two prefixed lines never mix, even if both descriptors are the
// same file. If the reader is slow, the ranks are held back, as they would be
// without the forwarder. If the reader is gone, the pipes are closed, and the
// ranks see a broken pipe as usual.
//
// Not thread safe. The forwarder works inside its owner's poll() loop:
//
//   forwarder.AddPollFds(fds);
//   poll(...);
//   forwarder.HandleEvents(the entries that AddPollFds added);
class OutputForwarder {
 public:
  // Creates a forwarder without ranks, which is done at once.
  OutputForwarder() = default;

  // Creates the pipes of `world_size` ranks. out_fd and err_fd are borrowed and
  // may be blocking: a write follows only after poll() has reported the
  // descriptor as writable, and is no larger than a pipe takes at once. Errors:
  // kResourceExhausted if no descriptors are left.
  static absl::StatusOr<OutputForwarder> Create(int world_size, int out_fd,
                                                int err_fd,
                                                OutputOptions options = {});

  // Returns the ends that the ranks write to, by rank; empty when called again.
  std::vector<RankStreams> TakeRankEnds() { return std::move(rank_ends_); }

  // Appends this forwarder's entries to `fds`. Their number is always the same.
  void AddPollFds(std::vector<pollfd>& fds) const;

  // Moves bytes as far as `fds`, the polled entries, allow without waiting.
  void HandleEvents(std::span<const pollfd> fds);

  // Returns whether output waits to be written.
  bool HasPending() const;

  // Stops reading, and passes unterminated last lines to the output.
  void CloseSources();

  // Returns whether every rank's end is closed and all lines are written.
  bool Done() const;

  // Returns, by rank, the output that OutputOptions::keep_bytes asks for; else
  // empty.
  std::vector<std::string> TakeKept();

  // The first error of a log, with its rank and path. Reaching the process's
  // file size limit is such an error; it raises no SIGXFSZ. The log gets no
  // more output; the ranks and the other logs continue.
  const absl::Status& log_status() const { return log_status_; }

 private:
  struct Sink {
    int fd;
    std::string pending = {};
    size_t written = 0;  // Bytes of `pending` already written.
    bool broken = false;

    size_t waiting() const { return pending.size() - written; }
  };
  struct Source {
    OwnedFd fd;
    int rank;
    size_t sink;
    std::optional<LinePrefixer> prefixer = std::nullopt;
  };

  absl::StatusOr<OwnedFd> AddSource(int rank, size_t sink);
  void WriteLog(int rank, absl::string_view bytes);
  void Keep(int rank, absl::string_view bytes);
  void Write(Sink& sink);
  void Read(Source& source);
  void Close(Source& source);

  OutputOptions options_;
  absl::Status log_status_;
  // By rank; at most about 2 * keep_bytes bytes.
  std::vector<std::string> kept_;
  std::vector<Sink> sinks_;
  std::vector<Source> sources_;
  std::vector<RankStreams> rank_ends_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_OUTPUT_FORWARDER_H_
