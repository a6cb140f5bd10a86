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

// Collects the bytes of one stream and hands out its complete lines, each with
// the prefix in front. A line longer than kMaxLineBytes is broken there, so
// that a stream without line ends cannot fill the memory. Not thread safe.
class LinePrefixer {
 public:
  static constexpr int kMaxLineBytes = 1 << 20;

  explicit LinePrefixer(absl::string_view prefix) : prefix_(prefix) {}

  // Takes the next bytes of the stream, any split; returns the lines that they
  // complete, prefixed, each with its line end; "" if there is none.
  // Cost: linear in the bytes taken.
  std::string Add(absl::string_view bytes);

  // The end of the stream: returns the last line if it had no line end, with
  // prefix and a line end; else "".
  std::string Finish();

 private:
  std::string prefix_;
  std::string partial_;  // The bytes since the last line end.
};

struct RankLog {
  std::string path;
  OwnedFd file;
};

// Opens the log of each rank, <folder>/rank-<rank>.log, numbered from
// first_rank on, empty, for appending;
// creates the folder, and those above it, where they are missing. Errors:
// kInvalidArgument, naming the path, if that cannot be done; files that were
// opened before it stay.
absl::StatusOr<std::vector<RankLog>> OpenRankLogs(const std::string& folder,
                                                  int world_size,
                                                  int first_rank = 0);

// Where one rank writes.
struct RankStreams {
  OwnedFd out;
  OwnedFd err;
};

// What else becomes of the ranks' output.
struct OutputOptions {
  // Whole lines, each with its rank in front ("[1] text"); else the bytes as
  // they come, so that lines of two ranks may mix.
  bool prefix = true;
  int first_rank = 0;  // The number in front of the first rank's lines.
  // By rank, or empty: files that get the bytes of both streams as they come.
  std::vector<RankLog> logs = {};
  // If not 0: the last bytes of both streams of each rank, so many of them, are
  // kept for TakeKept(), and none are written to the caller's descriptors.
  size_t keep_bytes = 0;
};

// Reads one pipe per rank and stream and writes what comes to two descriptors
// of the caller. Two prefixed lines never mix, also where both descriptors are
// the same file. When the reader is slow the ranks are held back, as they would
// be without the forwarder; when the reader is gone, so are the pipes, and the
// ranks learn it as from any pipe.
//
// Not thread safe; works inside its owner's poll() loop:
//
//   forwarder.AddPollFds(fds);
//   poll(...);
//   forwarder.HandleEvents(what AddPollFds added);
class OutputForwarder {
 public:
  // Without ranks: done at once.
  OutputForwarder() = default;

  // Creates the pipes of `world_size` ranks. out_fd and err_fd are borrowed and
  // may be blocking: at most what a pipe takes at once is written after poll()
  // says it is writable. Errors: kResourceExhausted if no descriptors are
  // left.
  static absl::StatusOr<OutputForwarder> Create(int world_size, int out_fd,
                                                int err_fd,
                                                OutputOptions options = {});

  // The ends that the ranks write to, by rank; empty when called again.
  std::vector<RankStreams> TakeRankEnds() { return std::move(rank_ends_); }

  // Appends this forwarder's entries to `fds`: always the same number.
  void AddPollFds(std::vector<pollfd>& fds) const;

  // Moves bytes as far as `fds`, the polled entries, allow without waiting.
  void HandleEvents(std::span<const pollfd> fds);

  // Lines that wait to be written.
  bool HasPending() const;

  // Stops reading: hands last unterminated lines to the output.
  void CloseSources();

  // Every rank's end is closed, and all lines are written.
  bool Done() const;

  // By rank, what OutputOptions::keep_bytes asks for; else empty.
  std::vector<std::string> TakeKept();

  // The first log that could not be written, with its rank and path: also one
  // beyond the process's file size limit, which raises no SIGXFSZ. It gets no
  // more; the ranks and the other logs go on.
  const absl::Status& log_status() const { return log_status_; }

 private:
  struct Sink {
    int fd;
    std::string pending = {};
    size_t written = 0;  // Bytes at the front of `pending` already written.
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
  std::vector<std::string> kept_;  // By rank; up to twice what is to be kept.
  std::vector<Sink> sinks_;
  std::vector<Source> sources_;
  std::vector<RankStreams> rank_ends_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_OUTPUT_FORWARDER_H_
