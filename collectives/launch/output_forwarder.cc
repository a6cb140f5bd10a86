#include "collectives/launch/output_forwarder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

absl::StatusOr<OwnedFd> OpenLog(const std::string& path) {
  // O_NONBLOCK, since opening a named pipe would block; pipes are rejected
  // below.
  OwnedFd log(open(
      path.c_str(),
      O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  struct stat info;
  if (!log.open() || fstat(log.get(), &info) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write the log ", path, ": ", strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write the log ", path, ": it is not a regular file"));
  }
  return log;
}

// Reading stops while this many bytes wait for a slow reader.
constexpr size_t kMaxWaiting = 64 << 10;

bool IsSameFile(int a, int b) {
  struct stat sa = {};
  struct stat sb = {};
  return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
         sa.st_ino == sb.st_ino;
}

}  // namespace

std::string LinePrefixer::Add(absl::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = kMaxLineBytes - partial_.size();
    if (std::min(end, bytes.size()) > room) {
      absl::StrAppend(&lines, prefix_, partial_, bytes.substr(0, room), "\n");
      partial_.clear();
      bytes.remove_prefix(room);
    } else if (end == absl::string_view::npos) {
      absl::StrAppend(&partial_, bytes);
      break;
    } else {
      absl::StrAppend(&lines, prefix_, partial_, bytes.substr(0, end + 1));
      partial_.clear();
      bytes.remove_prefix(end + 1);
    }
  }
  return lines;
}

std::string LinePrefixer::Finish() {
  if (partial_.empty()) return "";
  std::string line = absl::StrCat(prefix_, partial_, "\n");
  partial_.clear();
  return line;
}

absl::StatusOr<std::vector<RankLog>> OpenRankLogs(const std::string& folder,
                                                  int world_size,
                                                  int first_rank) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot create the log folder ", folder, ": ", error.message()));
  }
  std::vector<RankLog> logs;
  for (int rank = 0; rank < world_size; ++rank) {
    std::string path =
        absl::StrCat(folder, "/rank-", first_rank + rank, ".log");
    LOCKSTEP_ASSIGN_OR_RETURN(OwnedFd file, OpenLog(path));
    logs.push_back({std::move(path), std::move(file)});
  }
  return logs;
}

absl::StatusOr<OutputForwarder> OutputForwarder::Create(int world_size,
                                                        int out_fd, int err_fd,
                                                        OutputOptions options) {
  OutputForwarder forwarder;
  forwarder.options_ = std::move(options);
  forwarder.sinks_.push_back({.fd = out_fd});
  if (!IsSameFile(out_fd, err_fd)) forwarder.sinks_.push_back({.fd = err_fd});
  if (forwarder.options_.keep_bytes > 0) {
    forwarder.options_.prefix = false;
    forwarder.kept_.resize(static_cast<size_t>(world_size));
  }
  for (int rank = 0; rank < world_size; ++rank) {
    RankStreams ends;
    LOCKSTEP_ASSIGN_OR_RETURN(ends.out, forwarder.AddSource(rank, 0));
    LOCKSTEP_ASSIGN_OR_RETURN(
        ends.err, forwarder.AddSource(rank, forwarder.sinks_.size() - 1));
    forwarder.rank_ends_.push_back(std::move(ends));
  }
  return forwarder;
}

absl::StatusOr<OwnedFd> OutputForwarder::AddSource(int rank, size_t sink) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot create an output pipe for rank ", rank));
  }
  Source source = {.fd = OwnedFd(ends[0]), .rank = rank, .sink = sink};
  if (options_.prefix)
    source.prefixer.emplace(
        absl::StrCat("[", options_.first_rank + rank, "] "));
  sources_.push_back(std::move(source));
  return OwnedFd(ends[1]);
}

void OutputForwarder::AddPollFds(std::vector<pollfd>& fds) const {
  for (const Sink& sink : sinks_) {
    fds.push_back({sink.waiting() > 0 ? sink.fd : -1, POLLOUT, 0});
  }
  for (const Source& source : sources_) {
    const bool room = sinks_[source.sink].waiting() < kMaxWaiting;
    fds.push_back({room ? source.fd.get() : -1, POLLIN, 0});
  }
}

void OutputForwarder::HandleEvents(std::span<const pollfd> fds) {
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (fds[i].revents != 0) Write(sinks_[i]);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (fds[sinks_.size() + i].revents != 0) Read(sources_[i]);
  }
}

void OutputForwarder::Write(Sink& sink) {
  // A writable pipe has space for PIPE_BUF bytes; a larger write could block.
  const size_t size = std::min<size_t>(sink.waiting(), PIPE_BUF);
  const ssize_t written =
      write(sink.fd, sink.pending.data() + sink.written, size);
  if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (written < 0) {
    // The reader is gone. Closing the pipes gives the ranks the error that they
    // would get if they wrote to the reader directly.
    sink.broken = true;
    sink.written = sink.pending.size();
    for (Source& source : sources_) {
      if (&sinks_[source.sink] == &sink) Close(source);
    }
  } else {
    sink.written += written;
  }
  // Also erases while more output keeps arriving, so that memory stays bounded.
  // Does not erase after every write, since erasing moves the bytes that are
  // left.
  if (sink.waiting() == 0 || sink.written >= kMaxWaiting) {
    sink.pending.erase(0, sink.written);
    sink.written = 0;
  }
}

void OutputForwarder::Read(Source& source) {
  if (!source.fd.open()) return;
  char buffer[16 << 10];
  const ssize_t size = read(source.fd.get(), buffer, sizeof(buffer));
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    Close(source);
    return;
  }
  const absl::string_view bytes(buffer, static_cast<size_t>(size));
  WriteLog(source.rank, bytes);
  if (options_.keep_bytes > 0) {
    Keep(source.rank, bytes);
    return;
  }
  std::string& pending = sinks_[source.sink].pending;
  if (source.prefixer.has_value()) {
    pending += source.prefixer->Add(bytes);
  } else {
    absl::StrAppend(&pending, bytes);
  }
}

void OutputForwarder::WriteLog(int rank, absl::string_view bytes) {
  if (options_.logs.empty()) return;
  const FileSizeSignalBlock block;
  auto& [path, log] = options_.logs[static_cast<size_t>(rank)];
  while (log.open() && !bytes.empty()) {
    const ssize_t written = write(log.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      const std::string what =
          absl::StrCat("cannot write the log of rank ", rank, " (", path, ")");
      log_status_.Update(
          errno == EFBIG
              ? absl::ResourceExhaustedError(absl::StrCat(
                    what, ": beyond the file size limit (ulimit -f)"))
              : absl::ErrnoToStatus(errno, what));
      log.Close();
    }
  }
}

void OutputForwarder::Keep(int rank, absl::string_view bytes) {
  std::string& kept = kept_[static_cast<size_t>(rank)];
  absl::StrAppend(&kept, bytes);
  // Does not erase after every read, since erasing moves the bytes that are
  // left.
  if (kept.size() >= 2 * options_.keep_bytes) {
    kept.erase(0, kept.size() - options_.keep_bytes);
  }
}

std::vector<std::string> OutputForwarder::TakeKept() {
  for (std::string& kept : kept_) {
    if (kept.size() > options_.keep_bytes) {
      kept.erase(0, kept.size() - options_.keep_bytes);
    }
  }
  return std::move(kept_);
}

void OutputForwarder::Close(Source& source) {
  source.fd.Close();
  Sink& sink = sinks_[source.sink];
  if (!sink.broken && source.prefixer.has_value()) {
    sink.pending += source.prefixer->Finish();
  }
}

bool OutputForwarder::HasPending() const {
  return std::any_of(sinks_.begin(), sinks_.end(),
                     [](const Sink& sink) { return sink.waiting() > 0; });
}

void OutputForwarder::CloseSources() {
  for (Source& source : sources_) {
    if (source.fd.open()) Close(source);
  }
}

bool OutputForwarder::Done() const {
  return !HasPending() &&
         std::none_of(sources_.begin(), sources_.end(),
                      [](const Source& source) { return source.fd.open(); });
}

}  // namespace lockstep
