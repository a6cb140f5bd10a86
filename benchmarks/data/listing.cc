#include "benchmarks/data/listing.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/data/peer.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "models/data/image.h"
#include "models/data/load_dataset.h"
#include "models/data/png.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

constexpr int64_t kMaxListedClasses = 1000;
constexpr double kMaxListingSeconds = 3;
constexpr double kMaxBytesPerFile = 200;

absl::Status TimeOurs(const char* dataset, const std::string& folder,
                      ListingLine& line) {
  const double start = SteadySeconds();
  const absl::StatusOr<DatasetParts> parts = LoadDataset(dataset, folder);
  line.seconds.push_back(SteadySeconds() - start);
  return parts.status();
}

absl::Status TimePeer(TorchProcess& peer, const std::string& folder,
                      absl::Duration timeout, ListingLine& line) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<double> values,
      AskForNumbers(peer, absl::StrCat("list 0 0 ", folder, "/train"),
                    absl::Now() + timeout, "listed", 2));
  line.seconds.push_back(values[0]);
  // Later rounds reuse memory that the first round has released, so the largest
  // growth counts.
  line.bytes_a_file = std::max(line.bytes_a_file, values[1]);
  return absl::OkStatus();
}

}  // namespace

ListedFiles::ListedFiles(const ListingOptions& options, TemporaryFolder folder)
    : options_(options), folder_(std::move(folder)) {}

absl::Status ListedFiles::MakeClass(int64_t number, int64_t classes,
                                    std::string& list) {
  const std::string name = absl::StrFormat("n%08d", 1'000'000 + number);
  const std::string train = absl::StrCat("train/", name);
  std::error_code error;
  std::filesystem::create_directories(absl::StrCat(folder_.path(), "/", train),
                                      error);
  if (error) return absl::ErrnoToStatus(error.value(), folder_.path());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string png, EncodePng({1, 1, 1, {7}}));
  std::string first;
  for (int64_t i = number; i < options_.files; i += classes) {
    const std::string file = absl::StrCat(train, "/", name, "_", i, ".JPEG");
    const std::string path = absl::StrCat(folder_.path(), "/", file);
    if (first.empty()) {
      LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(path, png));
      first = path;
    } else if (link(first.c_str(), path.c_str()) != 0) {
      return absl::ErrnoToStatus(errno, path);
    }
    absl::StrAppend(&list, file, " ", number, "\n");
  }
  return absl::OkStatus();
}

absl::StatusOr<ListedFiles> ListedFiles::Make(const ListingOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-listing"));
  ListedFiles listed(options, std::move(folder));
  const int64_t classes = std::min(options.files, kMaxListedClasses);
  std::string list;
  for (int64_t number = 0; number < classes; ++number) {
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    ShowProgress(absl::StrCat("making class ", number + 1, " of ", classes));
    LOCKSTEP_RETURN_IF_ERROR(listed.MakeClass(number, classes, list));
  }
  ShowProgress("");
  const std::string& dir = listed.folder_.path();
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(dir + "/train_list.txt", list));
  // The test parts have one image.
  const std::string first = list.substr(0, list.find('\n') + 1);
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(dir + "/val_list.txt", first));
  std::error_code error;
  std::filesystem::create_directories(dir + "/val/n01000000", error);
  if (error) return absl::ErrnoToStatus(error.value(), dir);
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(dir + "/val/n01000000/0.png", ""));
  return listed;
}

absl::Status ListedFiles::MeasureMemory() {
  for (const auto& [dataset, line] :
       {std::pair("image_folder", &of_folder_), {"image_list", &of_list_}}) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const int64_t bytes,
        ResidentGrowth([] { return absl::OkStatus(); },
                       [&, dataset = dataset] {
                         return LoadDataset(dataset, folder_.path()).status();
                       }));
    line->bytes_a_file =
        static_cast<double>(bytes) / static_cast<double>(options_.files);
  }
  return absl::OkStatus();
}

absl::Status ListedFiles::MeasureTimes(TorchProcess* peer) {
  for (int round = 0; round < options_.rounds; ++round) {
    ShowProgress(
        absl::StrCat("listing, round ", round + 1, " of ", options_.rounds));
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    const std::string& dir = folder_.path();
    LOCKSTEP_RETURN_IF_ERROR(TimeOurs("image_folder", dir, of_folder_));
    LOCKSTEP_RETURN_IF_ERROR(TimeOurs("image_list", dir, of_list_));
    if (peer != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(
          TimePeer(*peer, dir, options_.timeout, of_peer_));
    }
  }
  ShowProgress("");
  return absl::OkStatus();
}

report::Document ListedFiles::Document() const {
  report::Document document = {
      .name = "lockstep.data",
      .title = "Listing image files",
      .about = absl::StrCat(options_.files,
                            " links to images, in folders of classes and in a "
                            "list: listed, with the folders in the cache")};
  report::Section section = {.title = "Listing",
                             .table = {.columns = {{"seconds", 27, true},
                                                   {"median", 9},
                                                   {"min", 9},
                                                   {"max", 9},
                                                   {"bytes/file", 12}}}};
  report::Value results = report::Value::Array();
  for (const ListingLine* const line : {&of_folder_, &of_list_, &of_peer_}) {
    if (line->seconds.empty()) continue;
    const auto [least, most] = std::ranges::minmax(line->seconds);
    section.table.rows.push_back(
        {line->subject, report::Significant(Median(line->seconds), 3),
         report::Significant(least, 3), report::Significant(most, 3),
         report::Significant(line->bytes_a_file, 3)});
    results.Add(report::Value{{"subject", line->subject},
                              {"seconds", line->seconds},
                              {"bytes_a_file", line->bytes_a_file}});
  }
  document.sections.push_back(std::move(section));
  if (!of_folder_.seconds.empty()) {
    document.bars = {{.what = "listing an image folder",
                      .needed = kMaxListingSeconds,
                      .at_most = true,
                      .unit = "s",
                      .value = Median(of_folder_.seconds)},
                     {.what = "memory of its index",
                      .needed = kMaxBytesPerFile,
                      .at_most = true,
                      .unit = "bytes a file",
                      .value = of_folder_.bytes_a_file}};
  }
  document.data = {{"files", options_.files}, {"results", std::move(results)}};
  return document;
}

}  // namespace lockstep::benchmarks
