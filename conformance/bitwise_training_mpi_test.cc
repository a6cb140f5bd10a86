// bitwise_training_test under mpirun: four processes of its, whose group is of
// the `mpi` backend, end with the bits of four threads.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/mpi/testing/mpirun.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/report/claim_recorder.h"
#include "conformance/trained_bits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;

class BitwiseTrainingMpiTest : public testing::TestWithParam<std::string> {};

TEST_P(BitwiseTrainingMpiTest, EndsWithTheBitsOfThreads) {
  ClaimRecorder recorder({"trained_bits", "mpi", kRanks, "float32"});
  if (!WhyNoMpirun().empty()) GTEST_SKIP() << WhyNoMpirun();
  BitsRun run = {.model = GetParam()};
  const auto train = [&](Communicator& group) {
    return TrainedBits(group, run);
  };
  MpiRunOptions mpi;
  mpi.deadline = absl::Minutes(4);
  // Buckets of some parameters, of one, of all.
  std::map<int64_t, std::vector<absl::StatusOr<std::string>>> runs;
  for (const int64_t bucket_bytes : {64 << 10, 1, 1 << 30}) {
    run.bucket_bytes = bucket_bytes;
    runs[bucket_bytes] = RunMpiRanksCollect(kRanks, train, mpi);
  }
  // After the processes, as each of them runs what is before.
  run.bucket_bytes = BitsRun().bucket_bytes;
  RunRanksOptions threads;
  threads.deadline = absl::Minutes(4);
  const auto want = RunRanksCollect(Backend::kThreads, kRanks, train, threads);
  ASSERT_EQ(want.size(), kRanks);
  for (const auto& [bucket_bytes, got] : runs) {
    ASSERT_EQ(got.size(), kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_THAT(got[rank], IsOk());
      ASSERT_THAT(want[rank], IsOk());
      EXPECT_THAT(*got[rank], HasSubstr("step 19 loss"));
      EXPECT_TRUE(*got[rank] == *want[rank])
          << "rank " << rank << ", buckets of " << bucket_bytes << " bytes";
    }
    recorder.AddExact();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BitwiseTrainingMpiTest,
                         testing::Values("lenet", "resnet18"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
