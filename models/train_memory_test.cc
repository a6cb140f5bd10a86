// The trainer where there is too little memory.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/testing/program.h"
#include "models/testing/train_fixture.h"

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::StartsWith;

class TrainMemoryTest : public TrainFixture {
 protected:
  TrainMemoryTest() : TrainFixture("train_memory_test") {}

  // An address space of which the program and two images take half; 200 images
  // alone take more than all of it.
  static constexpr int kKibibytes = 768 << 10;

  // One step in it.
  ProgramResult RunLimited(int batch_size) {
    const std::string command = absl::StrCat(
        "ulimit -v ", kKibibytes, " && exec models/train",
        " --model=resnet18 --epochs=1 --test_samples=1 --data_dir=", data(),
        " --train_samples=", batch_size, " --batch_size=", batch_size);
    Program program(Folder(absl::StrCat("batch", batch_size)),
                    {"/bin/sh", "-c", command});
    return program.Wait(kDeadline);
  }
};

TEST_F(TrainMemoryTest, SaysThatABatchIsTooLarge) {
  // The control: what ends the run below is the batch.
  const ProgramResult small = RunLimited(2);
  EXPECT_EQ(small.exit_status, 0) << small.err;
  const ProgramResult large = RunLimited(200);
  EXPECT_EQ(large.exit_status, 1);
  EXPECT_THAT(large.err, StartsWith("train: rank 0: no memory for a batch of "
                                    "200: it needs "));
  EXPECT_THAT(large.err, EndsWith(" MiB of activations\n"));
}

}  // namespace
}  // namespace lockstep
