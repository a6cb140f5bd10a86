// How long a data set of millions of image files takes to list, and how much
// memory its index takes.
#ifndef LOCKSTEP_BENCHMARKS_DATA_LISTING_H_
#define LOCKSTEP_BENCHMARKS_DATA_LISTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "benchmarks/harness/torch_process.h"
#include "report/document.h"

namespace lockstep::benchmarks {

struct ListingOptions {
  int64_t files = 0;  // At least 1.
  int rounds = 1;
  absl::Duration timeout = absl::Minutes(2);  // Of each listing by the peer.
};

// A way to list the files.
struct ListingLine {
  std::string subject = {};
  std::vector<double> seconds = {};  // By round.
  double bytes_a_file = 0;  // Ours: of the peak; the peer's: in the end.
};

// An image folder and lists of the same files: hard links to one image a class,
// in up to 1000 classes, named as ImageNet's are.
class ListedFiles {
 public:
  // Cost: 10 microseconds a file. Errors: the file system's, with the path.
  static absl::StatusOr<ListedFiles> Make(const ListingOptions& options);

  // Ours, of the folder and of the list. Call it while the process has one
  // thread.
  absl::Status MeasureMemory();
  // Lists all in turns with the peer, which may be null. The seconds are those
  // of a warm cache: the kernel has the folders in memory.
  absl::Status MeasureTimes(TorchProcess* peer);

  report::Document Document() const;

 private:
  ListedFiles(const ListingOptions& options, TemporaryFolder folder);

  absl::Status MakeClass(int64_t number, int64_t classes, std::string& list);

  ListingOptions options_;
  TemporaryFolder folder_;
  ListingLine of_folder_ = {"lockstep, image_folder"};
  ListingLine of_list_ = {"lockstep, image_list"};
  ListingLine of_peer_ = {"torchvision's ImageFolder"};
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_DATA_LISTING_H_
