#include "collectives/host/host_group.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_communicator.h"
#include "collectives/host/shared_region.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateThreadGroup(
    int world_size, const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      SharedRegion created,
      SharedRegion::Create(
          {world_size, options.slot_bytes, options.algorithm}));
  const auto region = std::make_shared<SharedRegion>(std::move(created));
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank) {
    group.push_back(std::make_unique<HostCommunicator>(
        region, rank, options.timeout, std::vector<ProcessIdentity>()));
  }
  return group;
}

namespace {

// Exchanges what each rank has to say, or why it cannot go on: then every rank
// gets the error of the lowest such rank, and none waits for it.
absl::StatusOr<std::vector<std::string>> ExchangeResults(
    Rendezvous& rendezvous, const absl::StatusOr<std::string>& mine) {
  const int code = static_cast<int>(mine.status().code());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> blobs,
      rendezvous.Exchange(absl::StrCat(
          code, " ",
          mine.ok() ? absl::string_view(*mine) : mine.status().message())));
  std::vector<std::string> results;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(blobs[rank], absl::MaxSplits(' ', 1));
    int code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " did not come to form a process group"));
    }
    if (code != 0) {
      return absl::Status(
          static_cast<absl::StatusCode>(code),
          absl::StrCat("rank ", rank, " cannot join: ", parts.second));
    }
    results.push_back(parts.second);
  }
  return results;
}

// What a rank says first: who it is and, rank 0 alone, where the memory is.
struct Introduction {
  ProcessIdentity process;
  std::string path;
};

std::string Encode(const Introduction& introduction) {
  return absl::StrCat(introduction.process.pid, " ",
                      introduction.process.start_ticks, " ", introduction.path);
}

absl::StatusOr<Introduction> Decode(const std::string& text, size_t rank) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Introduction introduction;
  if (words.size() != 3 ||
      !absl::SimpleAtoi(words[0], &introduction.process.pid) ||
      !absl::SimpleAtoi(words[1], &introduction.process.start_ticks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " did not come to form a process group"));
  }
  introduction.path = words[2];
  return introduction;
}

absl::StatusOr<std::vector<Introduction>> Introduce(
    Rendezvous& rendezvous, const absl::StatusOr<SharedRegion>& created) {
  const bool may_join = rendezvous.rank() != 0 || created.ok();
  const std::string path = created.ok() ? created->path() : "";
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      ExchangeResults(rendezvous, may_join ? absl::StatusOr<std::string>(
                                                 Encode({ThisProcess(), path}))
                                           : created.status()));
  std::vector<Introduction> introductions;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(Introduction introduction,
                              Decode(texts[rank], rank));
    introductions.push_back(std::move(introduction));
  }
  return introductions;
}

absl::StatusOr<SharedRegion> OpenRegion(const std::string& path,
                                        int world_size) {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedRegion region, SharedRegion::Open(path));
  if (region.shape().world_size != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is another group's memory"));
  }
  return region;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinProcessGroup(
    Rendezvous& rendezvous, const GroupOptions& options) {
  const int rank = rendezvous.rank();
  absl::StatusOr<SharedRegion> region = absl::UnavailableError("not rank 0");
  if (rank == 0) {
    region = SharedRegion::CreateShareable(
        {rendezvous.world_size(), options.slot_bytes, options.algorithm});
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Introduction> introductions,
                            Introduce(rendezvous, region));
  std::vector<ProcessIdentity> processes;
  for (const Introduction& introduction : introductions) {
    processes.push_back(introduction.process);
  }
  if (rank != 0) {
    region = OpenRegion(introductions[0].path, rendezvous.world_size());
  }
  absl::StatusOr<std::string> joined = std::string();
  if (!region.ok()) joined = region.status();
  if (region.ok()) {
    region->control(rank).pid.store(ThisProcess().pid,
                                    std::memory_order_relaxed);
  }
  // Once all hold the memory, nobody else needs to find it.
  LOCKSTEP_RETURN_IF_ERROR(ExchangeResults(rendezvous, joined).status());
  region->CloseFile();
  return std::make_unique<HostCommunicator>(
      std::make_shared<SharedRegion>(*std::move(region)), rank, options.timeout,
      std::move(processes));
}

absl::Status RunOnThreads(
    int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& fn) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Communicator>> communicators,
      CreateThreadGroup(world_size, options));
  std::vector<absl::Status> statuses(communicators.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < communicators.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = fn(*communicators[rank]);
      communicators[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (!absl::IsUnavailable(status)) return status;
    first.Update(status);
  }
  return first;
}

}  // namespace lockstep
