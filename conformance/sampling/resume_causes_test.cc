// Causes are named where they give every index, and nowhere else.
#include "conformance/sampling/resume_causes.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::IsEmpty;

const SubjectFactory kMake = MakeSubject;

class ResumeCausesTest : public testing::TestWithParam<int> {
 protected:
  // What a rank draws of an epoch from a step on.
  Batches From(int64_t epoch, size_t step) const {
    const auto ranks =
        Cut(case_, Deal(case_, PadOrCut(case_, ReferenceOrder(case_, epoch))));
    const Batches& own = ranks[1];
    return {own.begin() + static_cast<ptrdiff_t>(step), own.end()};
  }
  std::string Resume(const Batches& got) const {
    const Batches whole = From(1, 0);
    return CauseOfResume({kMake, case_, 1, 1, 2, whole, got});
  }
  std::string NextEpoch(const Batches& got, size_t step) const {
    const Batches whole = From(2, 0);
    return CauseOfNextEpoch({kMake, case_, 1, 2, step, whole, got});
  }

  const SamplingCase case_ = {.shuffle = Shuffle::kOwn,
                              .dataset_size = 10 * GetParam(),
                              .world_size = GetParam(),
                              .batch_size = 2};
};

TEST_P(ResumeCausesTest, NamesAnotherPlace) {
  EXPECT_EQ(Resume(From(1, 1)), ", as if a batch came again");
  EXPECT_EQ(Resume(From(1, 3)), ", as if a batch were skipped");
  EXPECT_EQ(Resume(From(0, 2)), ", as if it were epoch 0");
  EXPECT_EQ(Resume(From(2, 2)), ", as if it were epoch 2");
}

TEST_P(ResumeCausesTest, NamesNoneWhereOneIndexIsAnother) {
  for (const auto& [epoch, step] :
       {std::pair<int64_t, size_t>(1, 1), {1, 2}, {1, 3}, {0, 2}, {2, 2}}) {
    Batches got = From(epoch, step);
    std::swap(got[0][0], got[1][0]);
    EXPECT_THAT(Resume(got), IsEmpty());
  }
  EXPECT_THAT(Resume(From(1, 0)), IsEmpty());
  EXPECT_THAT(Resume({}), IsEmpty());
}

TEST_P(ResumeCausesTest, NamesWhereTheNextEpochBegins) {
  EXPECT_EQ(NextEpoch(From(2, 2), 2),
            ", as if it began at step 2, where the one before was stopped");
  EXPECT_EQ(NextEpoch(From(1, 0), 2), ", as if it were still epoch 1");
  EXPECT_THAT(NextEpoch(From(2, 1), 2), IsEmpty());
  EXPECT_THAT(NextEpoch(From(1, 2), 2), IsEmpty());
  EXPECT_THAT(NextEpoch({}, 2), IsEmpty());
  Batches got = From(1, 0);
  got[1][1] = -1;
  EXPECT_THAT(NextEpoch(got, 2), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeCausesTest, testing::Values(3, 4),
                         [](const auto& info) {
                           return "P" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace lockstep
