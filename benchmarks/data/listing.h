// Measures the time to list a data set of millions of image files, and the
// memory of its index.
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
  absl::Duration timeout = absl::Minutes(2);  // For each listing by the peer.
};

// A way to list the files, and its measurements.
struct ListingLine {
  std::string subject = {};
  std::vector<double> seconds = {};  // By round.
  // Ours: the growth of the peak. The peer's: the growth at the end.
  double bytes_a_file = 0;
};

// An image folder, and lists of the same files. The files are hard links to one
// image a class, in up to 1000 classes, with names as in ImageNet.
class ListedFiles {
 public:
  // Creates the files. Cost: 10 microseconds a file. Errors: the file system's,
  // with the path.
  static absl::StatusOr<ListedFiles> Make(const ListingOptions& options);

  // Measures our memory for the folder and for the list. The process must have
  // only one thread.
  absl::Status MeasureMemory();
  // Times our listings and the peer's in turns. The peer may be null. The
  // kernel has the folders in its cache.
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
