#include "models/train/same_data.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/counter_random.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/data/load_dataset.h"

namespace lockstep {
namespace {

// A rank's data set in few numbers, for ranks to compare. Images of the same
// labels whose pixels differ have the same digest.
struct DataDigest {
  int64_t train = 0;  // The number of images.
  int64_t test = 0;
  int64_t labels = 0;  // A hash of all labels in order.

  bool operator==(const DataDigest&) const = default;
};

DataDigest DigestOf(const DatasetParts& data) {
  uint64_t hash = 0;
  for (const Dataset* const part : {data.train.get(), data.test.get()}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      hash = MixBits(hash + static_cast<uint64_t>(part->label(i)) + 1);
    }
  }
  return {data.train->size(), data.test->size(), static_cast<int64_t>(hash)};
}

// Says in what rank `rank` differs from rank 0.
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
  return absl::StrCat("rank ", rank, " has other labels than rank 0");
}

}  // namespace

absl::Status CheckSameData(Communicator& communicator,
                           const DatasetParts& data) {
  const DataDigest own = DigestOf(data);
  const std::array<int64_t, 3> numbers = {own.train, own.test, own.labels};
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
