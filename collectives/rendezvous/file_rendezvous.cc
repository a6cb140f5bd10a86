// Publishing, waiting and cleaning up in the rendezvous file.
#include "collectives/rendezvous/file_rendezvous.h"

#include <sys/random.h>
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/record_file.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFirstPause = absl::Microseconds(200);
constexpr absl::Duration kLongestPause = absl::Milliseconds(5);
constexpr absl::Duration kLookForDeadEvery = absl::Milliseconds(20);
// For the lock that a rank needs to leave. No process keeps the lock for long.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);

uint64_t NewToken(const ProcessIdentity& process) {
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), GRND_NONBLOCK) ==
      static_cast<ssize_t>(sizeof(token))) {
    return token;
  }
  // The address of a live variable is unique within the process.
  return process.start_ticks * 0x9e3779b97f4a7c15 ^
         static_cast<uint64_t>(process.pid) << 32 ^
         reinterpret_cast<uintptr_t>(&token);
}

// Encodes why a rank left, for its record.
std::string EncodeCause(const absl::Status& cause) {
  const std::string text =
      absl::StrCat(static_cast<int>(cause.code()), " ", cause.message());
  return text.substr(0, kMaxBlobBytes);
}

std::optional<absl::Status> DecodeCause(absl::string_view blob) {
  const size_t space = blob.find(' ');
  int code = 0;
  if (space == absl::string_view::npos ||
      !absl::SimpleAtoi(blob.substr(0, space), &code) || code == 0) {
    return std::nullopt;
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      blob.substr(space + 1));
}

std::string Describe(const RendezvousRecord& record) {
  return absl::StrCat("rank ", record.rank, " (pid ", record.writer.pid, ")");
}

struct OpenedFile {
  // The file's own folder, if it has one.
  std::optional<TemporaryFolder> folder;
  RecordFile file;  // Closes before the folder is removed.
};

absl::StatusOr<OpenedFile> OpenFile(const FileRendezvousOptions& options) {
  const std::string folder_path =
      std::filesystem::path(options.path).parent_path();
  // If several ranks come and leave at once, one may remove the folder before
  // another has opened the file.
  constexpr int kAttempts = 100;
  for (int i = 1; true; ++i) {
    std::optional<TemporaryFolder> folder;
    if (options.own_folder) {
      LOCKSTEP_ASSIGN_OR_RETURN(folder,
                                TemporaryFolder::OpenShared(folder_path));
    }
    absl::StatusOr<RecordFile> file = RecordFile::Open(options.path);
    if (file.ok()) return OpenedFile{std::move(folder), *std::move(file)};
    if (!folder.has_value() || !absl::IsNotFound(file.status()) ||
        i == kAttempts) {
      return file.status();
    }
  }
}

class FileRendezvous : public Rendezvous {
 public:
  FileRendezvous(const FileRendezvousOptions& options, OpenedFile opened)
      : options_(options),
        folder_(std::move(opened.folder)),
        file_(std::move(opened.file)),
        self_(ThisProcess()),
        token_(NewToken(self_)) {}

  ~FileRendezvous() override { Leave(absl::OkStatus()); }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }

  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    if (!failure_.ok()) return failure_;
    ++round_;
    absl::StatusOr<std::vector<std::string>> blobs = TryExchange(blob);
    if (!blobs.ok()) {
      failure_ = blobs.status();
      Leave(failure_);
    }
    return blobs;
  }

 private:
  absl::StatusOr<std::vector<std::string>> TryExchange(absl::string_view blob) {
    const Deadline deadline(options_.timeout);
    LOCKSTEP_RETURN_IF_ERROR(Publish(blob, deadline));
    absl::Duration pause = kFirstPause;
    absl::Duration since_look = absl::ZeroDuration();
    LOCKSTEP_RETURN_IF_ERROR(CheckRecords());
    while (true) {
      if (auto blobs = Gather(); blobs.has_value()) {
        if (round_ == 1 && rank() == 0) RemoveName(deadline);
        return *std::move(blobs);
      }
      if (deadline.passed()) return Missing();
      absl::SleepFor(pause);
      since_look += pause;
      pause = std::min(pause * 1.5, kLongestPause);
      absl::Status death;
      if (since_look >= kLookForDeadEvery) {
        death = LookForDead();
        since_look = absl::ZeroDuration();
      }
      // Reads after the look for dead ranks, since a dead rank may have
      // published before.
      LOCKSTEP_RETURN_IF_ERROR(ReadNews(deadline));
      LOCKSTEP_RETURN_IF_ERROR(CheckRecords());
      if (!death.ok() && !Gather().has_value()) return death;
    }
  }

  absl::Status Publish(absl::string_view blob, const Deadline& deadline) {
    LOCKSTEP_RETURN_IF_ERROR(file_.Lock(deadline));
    // If the file was removed before this rank first wrote to it, the file
    // belonged to another run.
    while (round_ == 1 && !file_.IsAtPath()) {
      LOCKSTEP_ASSIGN_OR_RETURN(OpenedFile opened, OpenFile(options_));
      file_ = std::move(opened.file);
      folder_ = std::move(opened.folder);
      LOCKSTEP_RETURN_IF_ERROR(file_.Lock(deadline));
    }
    const absl::Cleanup unlock = [this] { file_.Unlock(); };
    LOCKSTEP_RETURN_IF_ERROR(file_.Read());
    if (round_ == 1) {
      if (IsLeftover()) LOCKSTEP_RETURN_IF_ERROR(file_.Clear());
      meeting_ = MeetingToJoin();
      LOCKSTEP_RETURN_IF_ERROR(CheckClaims());
    }
    takes_part_ = true;
    LOCKSTEP_RETURN_IF_ERROR(CheckBlob(rank(), blob));
    return file_.Append(NewRecord(RecordKind::kPublish, std::string(blob)));
  }

  RendezvousRecord NewRecord(RecordKind kind, std::string blob) const {
    return {.kind = kind,
            .meeting = meeting_,
            .round = std::max<uint32_t>(round_, 1),
            .rank = rank(),
            .world_size = world_size(),
            .writer = self_,
            .token = token_,
            .written_ticks = TicksSinceHostStart(),
            .blob = std::move(blob)};
  }

  bool HasLeft(const RendezvousRecord& record) const {
    return std::any_of(file_.records().begin(), file_.records().end(),
                       [&](const RendezvousRecord& other) {
                         return other.kind == RecordKind::kLeave &&
                                other.token == record.token;
                       });
  }

  bool IsParticipating(const RendezvousRecord& record) const {
    return !HasLeft(record) && IsAlive(record.writer);
  }

  // Returns whether all records are an earlier run's; see the header. A process
  // of this run that started later than this one cannot have ended before this
  // one began.
  bool IsLeftover() const {
    return std::none_of(file_.records().begin(), file_.records().end(),
                        [this](const RendezvousRecord& record) {
                          return IsParticipating(record) ||
                                 record.written_ticks > self_.start_ticks;
                        });
  }

  uint64_t LastMeeting() const {
    uint64_t last = 1;
    for (const RendezvousRecord& record : file_.records()) {
      last = std::max(last, record.meeting);
    }
    return last;
  }

  // Returns the last meeting, or the next one if all ranks of the last have
  // joined. No rank joins the next meeting before that, so all ranks agree on
  // it.
  uint64_t MeetingToJoin() const {
    const uint64_t last = LastMeeting();
    int32_t world_size = 1;
    std::set<int32_t> came;
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting != last || record.kind != RecordKind::kPublish) {
        continue;
      }
      world_size = std::max(world_size, record.world_size);
      came.insert(record.rank);
    }
    return came.size() < static_cast<size_t>(world_size) ? last : last + 1;
  }

  // Only the second claimant gets this error, since the first has done nothing
  // wrong.
  absl::Status CheckClaims() const {
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting == meeting_ && record.rank == rank() &&
          IsParticipating(record)) {
        return file_.Error(absl::StatusCode::kAlreadyExists, Describe(record),
                           " has joined already");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadNews(const Deadline& deadline) {
    if (!file_.HasGrown()) return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(file_.Lock(deadline));
    const absl::Cleanup unlock = [this] { file_.Unlock(); };
    return file_.Read();
  }

  // Checks the other ranks' records against this exchange.
  absl::Status CheckRecords() const {
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting == meeting_ && record.world_size != world_size()) {
        return file_.Error(
            absl::StatusCode::kInvalidArgument,
            "ranks disagree on the world size: ", Describe(record), " says ",
            record.world_size, ", rank ", rank(), " says ", world_size());
      }
    }
    if (Gather().has_value()) return absl::OkStatus();
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting != meeting_ || record.kind != RecordKind::kLeave) {
        continue;
      }
      if (auto cause = DecodeCause(record.blob)) return *cause;
      return file_.Error(absl::StatusCode::kUnavailable, Describe(record),
                         " left");
    }
    return absl::OkStatus();
  }

  // Returns every rank's blob of this round, or nullopt until all are there.
  std::optional<std::vector<std::string>> Gather() const {
    std::vector<std::string> blobs;
    for (const RendezvousRecord* record : Found()) {
      if (record == nullptr) return std::nullopt;
      blobs.push_back(record->blob);
    }
    return blobs;
  }

  // Returns each rank's record of this round, or null.
  std::vector<const RendezvousRecord*> Found() const {
    std::vector<const RendezvousRecord*> found(
        static_cast<size_t>(world_size()));
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting == meeting_ && record.kind == RecordKind::kPublish &&
          record.round == round_ && record.rank < world_size()) {
        found[static_cast<size_t>(record.rank)] = &record;
      }
    }
    return found;
  }

  absl::Status LookForDead() const {
    for (const RendezvousRecord& record : file_.records()) {
      if (record.meeting == meeting_ && !IsAlive(record.writer)) {
        return file_.Error(absl::StatusCode::kUnavailable, Describe(record),
                           " died");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Missing() const {
    std::vector<int> missing;
    const std::vector<const RendezvousRecord*> found = Found();
    for (int i = 0; i < world_size(); ++i) {
      if (found[static_cast<size_t>(i)] == nullptr) missing.push_back(i);
    }
    return file_.Error(absl::StatusCode::kDeadlineExceeded,
                       missing.size() == 1 ? "rank " : "ranks ",
                       absl::StrJoin(missing, ", "), " of ", world_size(),
                       " did not come within ",
                       absl::FormatDuration(options_.timeout));
  }

  void RemoveName(const Deadline& deadline) {
    if (!file_.Lock(deadline).ok()) return;
    // If the file holds a later meeting, ranks there already wait for this
    // rank.
    if (file_.Read().ok() && LastMeeting() == meeting_) file_.Unlink();
    file_.Unlock();
  }

  // Tells the other ranks, once; the last to leave removes the file. If telling
  // fails, the other ranks notice the end of this process.
  void Leave(const absl::Status& cause) {
    if (!takes_part_) return;
    takes_part_ = false;
    if (!file_.Lock(Deadline(kLeaveTimeout)).ok()) return;
    const absl::Cleanup unlock = [this] { file_.Unlock(); };
    if (!file_.Read().ok()) return;
    if (!file_.Append(NewRecord(RecordKind::kLeave, EncodeCause(cause))).ok()) {
      return;
    }
    const auto takes_part = [this](const RendezvousRecord& record) {
      return IsParticipating(record);
    };
    if (std::none_of(file_.records().begin(), file_.records().end(),
                     takes_part)) {
      // A file that cannot be emptied does no harm: the next run empties it.
      if (!file_.Unlink()) (void)file_.Clear();
    }
  }

  const FileRendezvousOptions options_;
  std::optional<TemporaryFolder> folder_;
  RecordFile file_;
  const ProcessIdentity self_;
  const uint64_t token_;
  uint64_t meeting_ = 1;
  uint32_t round_ = 0;
  bool takes_part_ = false;  // Has published, and has not left.
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> OpenFileRendezvous(
    const FileRendezvousOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRank(options.rank, options.world_size));
  LOCKSTEP_ASSIGN_OR_RETURN(OpenedFile file, OpenFile(options));
  return std::make_unique<FileRendezvous>(options, std::move(file));
}

}  // namespace lockstep
