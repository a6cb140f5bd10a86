#include "models/train/same_data.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/counter_random.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/data/load_dataset.h"

namespace lockstep {
namespace {

// A digest of a rank's data set, which ranks compare.
struct DataDigest {
  int64_t train = 0;  // The number of images.
  int64_t test = 0;
  int64_t images = 0;  // A hash of all labels and file names in order.

  bool operator==(const DataDigest&) const = default;
};

// Returns a file's name with its folder's name only, because ranks may have the
// data set in different places.
absl::string_view FolderAndName(absl::string_view path) {
  const size_t name = path.rfind('/');
  if (name == path.npos || name == 0) return path;
  const size_t folder = path.rfind('/', name - 1);
  return folder == path.npos ? path : path.substr(folder + 1);
}

DataDigest DigestOf(const DatasetParts& data) {
  uint64_t hash = 0;
  for (const Dataset* const part : {data.train.get(), data.test.get()}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      hash = MixBits(hash + static_cast<uint64_t>(part->label(i)) + 1);
      hash = Fnv1a(FolderAndName(part->file(i)), hash);
    }
  }
  return {data.train->size(), data.test->size(), static_cast<int64_t>(hash)};
}

// Returns a message that says how rank `rank` differs from rank 0.
std::string DescribeDifference(int rank, const DataDigest& digest,
                               const DataDigest& first) {
  if (digest.train != first.train) {
    return absl::StrCat("rank ", rank, " has ", digest.train,
                        " images to train on, rank 0 has ", first.train);
  }
  if (digest.test != first.test) {
    return absl::StrCat("rank ", rank, " has ", digest.test,
                        " images to test with, rank 0 has ", first.test);
  }
  return absl::StrCat("rank ", rank, " has other files or labels than rank 0");
}

}  // namespace

absl::Status CheckSameData(Communicator& communicator,
                           const DatasetParts& data) {
  const DataDigest own = DigestOf(data);
  const std::array<int64_t, 3> numbers = {own.train, own.test, own.images};
  std::vector<int64_t> all(numbers.size() * communicator.world_size());
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGather(
      std::span<const int64_t>(numbers), std::span(all)));
  const auto digest = [&](int rank) -> DataDigest {
    const size_t at = rank * numbers.size();
    return {all[at], all[at + 1], all[at + 2]};
  };
  for (int rank = 1; rank < communicator.world_size(); ++rank) {
    if (digest(rank) == digest(0)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeDifference(rank, digest(rank), digest(0)),
                     ": every rank must see the same files"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
