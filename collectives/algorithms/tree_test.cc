// That recursive halving and doubling adds every rank once, in the order of the
// tree, and that all who have to, end with all of it; and TreeAllReduce at
// sizes below and above those at which ranges are halved, also beyond those at
// which RunOverTransport uses it.
#include "collectives/algorithms/tree.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int64_t kCounts = 60;
constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
constexpr int64_t kWholeElements[] = {1, 2, 5, 16, kCounts};

TEST(TreeScheduleTest, PairsAreTheGroupsOfTwoRanks) {
  for (const int world_size : kWorldSizes) {
    int end = 0;
    for (int group = 0; group < TreeGroups(world_size); ++group) {
      EXPECT_EQ(TreeGroupBegin(world_size, group), end);
      const int next = TreeGroupBegin(world_size, group + 1);
      EXPECT_EQ(next - end, IsTreePair(world_size, group) ? 2 : 1);
      for (; end < next; ++end) {
        EXPECT_EQ(TreeGroupOf(world_size, end), group);
      }
    }
    EXPECT_EQ(end, world_size);
    EXPECT_EQ(TreeGroups(world_size), 1 << TreeRounds(world_size));
  }
}

TEST(TreeScheduleTest, OneRankOfEachGroupSpeaksAndTheRootForItself) {
  for (const int world_size : kWorldSizes) {
    for (int root = 0; root < world_size; ++root) {
      for (int group = 0; group < TreeGroups(world_size); ++group) {
        const int speaker = TreeSpeaker(world_size, group, root);
        EXPECT_EQ(TreeGroupOf(world_size, speaker), group);
        if (IsTreePair(world_size, group)) {
          EXPECT_EQ(TreeGroupOf(world_size, TreePartner(speaker)), group);
          EXPECT_NE(TreePartner(speaker), root);
        }
      }
      EXPECT_EQ(TreeSpeaker(world_size, TreeGroupOf(world_size, root), root),
                root);
    }
  }
}

// Terms as numbers: equal terms are one number.
class Terms {
 public:
  int Leaf(int rank) { return Number({-1, rank}); }
  int Sum(int earlier, int later) { return Number({earlier, later}); }
  int Tree(int world_size, int begin, int end) {
    if (end - begin == 1) return Leaf(begin);
    const int split = TreeSplit(world_size, begin, end);
    const int earlier = Tree(world_size, begin, split);
    return Sum(earlier, Tree(world_size, split, end));
  }

 private:
  int Number(std::pair<int, int> term) {
    return numbers_.emplace(term, static_cast<int>(numbers_.size()))
        .first->second;
  }

  std::map<std::pair<int, int>, int> numbers_;
};

// In place of TreeRoundOf.
using RoundOf = std::function<TreeRound(int group, int round, Segment range,
                                        int64_t whole_elements)>;

// Plays the rounds with terms in place of numbers.
class Play {
 public:
  Play(int64_t count, int world_size, int64_t whole_elements,
       const RoundOf& round_of)
      : world_size_(world_size),
        groups_(TreeGroups(world_size)),
        rounds_(TreeRounds(world_size)),
        sums_(groups_, std::vector<int>(count)) {
    Start(count);
    Plan(count, whole_elements, round_of);
  }

  // Both of a pair must see the same exchange.
  absl::Status CheckMeetings() const {
    for (int round = 0; round < rounds_; ++round) {
      for (int group = 0; group < groups_; ++group) {
        const TreeRound& mine = plan_[round][group];
        const TreeRound& peers = plan_[round][mine.peer_group];
        if (peers.peer_group == group && peers.mine == mine.peers &&
            peers.peers == mine.mine && peers.whole == mine.whole) {
          continue;
        }
        return absl::InternalError(absl::StrCat(
            "round ", round, ": group ", group, " and its peer disagree"));
      }
    }
    return absl::OkStatus();
  }

  void Halve() {
    for (const std::vector<TreeRound>& round : plan_) {
      const auto before = sums_;
      for (int group = 0; group < groups_; ++group) {
        const TreeRound& r = round[group];
        const std::vector<int>& peers = before[r.peer_group];
        ForEach(r.mine, [&](int64_t i) {
          int& sum = sums_[group][i];
          sum = r.peer_is_earlier ? terms_.Sum(peers[i], sum)
                                  : terms_.Sum(sum, peers[i]);
        });
      }
    }
  }

  void Double() {
    for (int round = rounds_ - 1; round >= 0; --round) {
      const auto before = sums_;
      for (int group = 0; group < groups_; ++group) {
        Take(before, round, group);
      }
    }
  }

  void GatherAtRoot(int root) {
    const int root_group = TreeGroupOf(world_size_, root);
    std::vector<bool> is_done(groups_);
    for (int round = rounds_ - 1; round >= 0; --round) {
      const auto before = sums_;
      const auto was_done = is_done;
      for (int group = 0; group < groups_; ++group) {
        if (is_done[group]) continue;
        if (IsOnRootSide(group, root_group, round)) {
          // Its peer is there to send.
          EXPECT_FALSE(was_done[plan_[round][group].peer_group]);
          Take(before, round, group);
        } else {
          is_done[group] = true;
        }
      }
    }
  }

  // `group` must have all of the tree's sums.
  absl::Status CheckSums(int group) {
    const int want = terms_.Tree(world_size_, 0, world_size_);
    for (size_t i = 0; i < sums_[group].size(); ++i) {
      if (sums_[group][i] == want) continue;
      return absl::DataLossError(
          absl::StrCat("group ", group, ", element ", i));
    }
    return absl::OkStatus();
  }

  absl::Status CheckAllReduce() {
    LOCKSTEP_RETURN_IF_ERROR(CheckMeetings());
    Halve();
    Double();
    for (int group = 0; group < groups_; ++group) {
      LOCKSTEP_RETURN_IF_ERROR(CheckSums(group));
    }
    return absl::OkStatus();
  }

  absl::Status CheckReduce(int root) {
    LOCKSTEP_RETURN_IF_ERROR(CheckMeetings());
    Halve();
    GatherAtRoot(root);
    return CheckSums(TreeGroupOf(world_size_, root));
  }

 private:
  void Start(int64_t count) {
    for (int group = 0; group < groups_; ++group) {
      const int first = TreeGroupBegin(world_size_, group);
      const int sum = terms_.Tree(world_size_, first,
                                  TreeGroupBegin(world_size_, group + 1));
      sums_[group].assign(count, sum);
    }
  }

  void Plan(int64_t count, int64_t whole_elements, const RoundOf& round_of) {
    std::vector<Segment> ranges(groups_, Segment{0, count});
    for (int round = 0; round < rounds_; ++round) {
      plan_.emplace_back();
      for (int group = 0; group < groups_; ++group) {
        plan_.back().push_back(
            round_of(group, round, ranges[group], whole_elements));
        ranges[group] = plan_.back().back().mine;
      }
    }
  }

  static void ForEach(Segment range,
                      const std::function<void(int64_t)>& visit) {
    for (int64_t i = range.begin; i < range.begin + range.count; ++i) visit(i);
  }

  void Take(const std::vector<std::vector<int>>& before, int round, int group) {
    const TreeRound& r = plan_[round][group];
    if (r.whole) return;
    ForEach(r.peers,
            [&](int64_t i) { sums_[group][i] = before[r.peer_group][i]; });
  }

  const int world_size_;
  const int groups_;
  const int rounds_;
  Terms terms_;
  std::vector<std::vector<int>> sums_;        // By group and element.
  std::vector<std::vector<TreeRound>> plan_;  // By round and group.
};

template <typename Check>
void ForEachCase(const Check& check) {
  for (const int world_size : kWorldSizes) {
    for (const int64_t whole_elements : kWholeElements) {
      for (int64_t count = 0; count <= kCounts; ++count) {
        SCOPED_TRACE(absl::StrCat(world_size, " ranks, ", count,
                                  " elements, whole up to ", whole_elements));
        check(world_size, count, whole_elements);
      }
    }
  }
}

TEST(TreeScheduleTest, AllReduceIsTheTreeAtEveryRank) {
  ForEachCase([](int world_size, int64_t count, int64_t whole_elements) {
    EXPECT_THAT(
        Play(count, world_size, whole_elements, TreeRoundOf).CheckAllReduce(),
        IsOk());
  });
}

TEST(TreeScheduleTest, ReduceIsTheTreeAtTheRoot) {
  ForEachCase([](int world_size, int64_t count, int64_t whole_elements) {
    for (int root = 0; root < world_size; ++root) {
      EXPECT_THAT(Play(count, world_size, whole_elements, TreeRoundOf)
                      .CheckReduce(root),
                  IsOk());
    }
  });
}

TEST(TreeScheduleTest, RangesAreThoseOfTheRounds) {
  ForEachCase([](int world_size, int64_t count, int64_t whole_elements) {
    for (int group = 0; group < TreeGroups(world_size); ++group) {
      Segment range = {0, count};
      for (int round = 0; round < TreeRounds(world_size); ++round) {
        EXPECT_EQ(TreeRangeOf(group, round, count, whole_elements), range);
        const TreeRound r = TreeRoundOf(group, round, range, whole_elements);
        EXPECT_EQ(r.whole, range.count <= whole_elements);
        range = r.mine;
      }
    }
  });
}

TEST(TreeScheduleTest, HalvesDataBeyondInt32) {
  const int64_t half = int64_t{1} << 39;
  const TreeRound r = TreeRoundOf(3, 0, {half, 2 * half + 1}, 256);
  EXPECT_EQ(r.peer_group, 2);
  EXPECT_EQ(r.mine, (Segment{2 * half + 1, half}));
  EXPECT_EQ(r.peers, (Segment{half, half + 1}));
}

// Controls: schedules that are wrong in one place.

absl::Status CheckWrong(const std::function<void(int, int, TreeRound&)>& harm) {
  return Play(40, 8, 2,
              [&harm](int group, int round, Segment range, int64_t whole) {
                TreeRound r = TreeRoundOf(group, round, range, whole);
                harm(group, round, r);
                return r;
              })
      .CheckAllReduce();
}

TEST(TreeScheduleTest, CheckRejectsSwappedOperands) {
  EXPECT_THAT(CheckWrong([](int group, int round, TreeRound& r) {
                if (group == 5 && round == 1) {
                  r.peer_is_earlier = !r.peer_is_earlier;
                }
              }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element")));
}

TEST(TreeScheduleTest, CheckRejectsRoundsInAnotherOrder) {
  const RoundOf wrong = [](int group, int round, Segment range, int64_t whole) {
    return TreeRoundOf(group, round < 2 ? 1 - round : round, range, whole);
  };
  EXPECT_THAT(Play(40, 8, 2, wrong).CheckAllReduce(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element 0")));
}

TEST(TreeScheduleTest, CheckRejectsAnotherPeer) {
  EXPECT_THAT(CheckWrong([](int group, int round, TreeRound& r) {
                if (group == 6 && round == 0) r.peer_group = 5;
              }),
              StatusIs(absl::StatusCode::kInternal,
                       "round 0: group 6 and its peer disagree"));
}

TEST(TreeScheduleTest, CheckRejectsARangeThatBothLeaveOut) {
  EXPECT_THAT(CheckWrong([](int group, int round, TreeRound& r) {
                if (round != 2) return;
                if (group < 4) {
                  --r.mine.count;
                } else {
                  --r.peers.count;
                }
              }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("element")));
}

TEST(TreeScheduleTest, CheckRejectsARangeThatIsNotGivenBack) {
  EXPECT_THAT(CheckWrong([](int group, int round, TreeRound& r) {
                if (round == 0 && group < 2) r.whole = true;
              }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("group 0")));
}

absl::Status RunTree(Transport& transport, const Collective& call) {
  if (call.operation == Operation::kAllReduce) {
    return TreeAllReduce(transport, call.input, call.output, call.op);
  }
  return TreeReduce(transport, call.input, call.output, call.op, call.peer);
}

class TreeTest : public testing::TestWithParam<int> {
 protected:
  void Check(const std::vector<CheckedCall>& calls, int max_pieces) {
    const auto statuses = RunOverMemory(
        GetParam(), {.max_piece_bytes = 192, .max_pieces = max_pieces},
        [&](Transport& transport) {
          return RunAndCheck(transport, calls, AdditionOrder::kTree, RunTree);
        });
    EXPECT_THAT(FirstCause(statuses), IsOk());
  }
};

// 1, 2, 4 and 8 times what is not halved, more or less.
std::vector<int64_t> Counts(int64_t accumulator_bytes) {
  std::vector<int64_t> counts = {0, 1, 2, 7};
  for (const int64_t whole : {1, 2, 4, 8}) {
    const int64_t count = whole * kTreeWholeBytes / accumulator_bytes;
    counts.insert(counts.end(), {count - 1, count, count + 1});
  }
  return counts;
}

TEST_P(TreeTest, ReducesInTheOrderOfTheTree) {
  for (const int max_pieces : {2, 4}) {
    std::vector<CheckedCall> calls;
    for (const DataType type : {DataType::kFloat32, DataType::kFloat16}) {
      for (const int64_t count : Counts(/*accumulator_bytes=*/4)) {
        for (const bool in_place : {false, true}) {
          calls.push_back({Operation::kAllReduce, type, ReduceOp::kSum, count,
                           /*root=*/0, in_place});
        }
      }
    }
    Check(calls, max_pieces);
  }
}

TEST_P(TreeTest, ReducesToEachRoot) {
  std::vector<CheckedCall> calls;
  for (int root = 0; root < GetParam(); ++root) {
    for (const int64_t count : Counts(/*accumulator_bytes=*/8)) {
      calls.push_back({Operation::kReduce, DataType::kUInt8, ReduceOp::kAverage,
                       count, root,
                       /*in_place=*/count % 2 == 0});
    }
  }
  Check(calls, /*max_pieces=*/2);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, TreeTest,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

}  // namespace
}  // namespace lockstep
