// Tests of checkpoints, of the optimizer's state beside them, and of runs that
// continue from both.
#include "models/train/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/optimizer.h"
#include "models/train/rank_steps.h"
#include "models/train/test_inputs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const CheckpointInfo kInfo = {.model = "lenet",
                              .seed = ~uint64_t{0},
                              .epochs = 3,
                              .convolution = ConvolutionAlgorithm::kWinograd};

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : path_(absl::StrCat(testing::TempDir(), "/checkpoint.safetensors")) {
    const std::span<float> values = saved_.parameters().values();
    std::iota(values.begin(), values.end(), 0.1f);
    const std::span<float> floats = saved_.buffers().floats();
    std::iota(floats.begin(), floats.end(), -0.3f);
    saved_.buffers().counters()[0] = (int64_t{1} << 60) + 1;
    EXPECT_THAT(
        SaveCheckpoint(path_, kInfo, saved_.parameters(), saved_.buffers()),
        IsOk());
  }

  const std::string path_;
  CountingModel saved_, loaded_;
};

TEST_F(CheckpointTest, ReadsBackTheTensorsAndInfoThatItWroteAlone) {
  EXPECT_THAT(LoadCheckpoint(path_, loaded_.parameters(), loaded_.buffers()),
              IsOkAndHolds(kInfo));
  const Safetensors want = WeightsOf(saved_);
  EXPECT_EQ(want.tensors.size(), 6u);
  EXPECT_EQ(WeightsOf(loaded_), want);
  EXPECT_EQ(ReadSafetensors(path_).value().tensors, want.tensors);
}

TEST_F(CheckpointTest, ReadsACheckpointOfAModelWithoutBuffers) {
  Buffers none;
  ASSERT_THAT(SaveCheckpoint(path_, kInfo, saved_.parameters(), none), IsOk());
  // A model with buffers cannot resume from this file, and keeps its values.
  EXPECT_THAT(
      LoadCheckpoint(path_, loaded_.parameters(), loaded_.buffers()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith(path_), HasSubstr("has no tensor 'batches'"))));
  EXPECT_THAT(loaded_.parameters().values(), Each(0.0f));
  EXPECT_THAT(LoadCheckpoint(path_, loaded_.parameters(), none),
              IsOkAndHolds(kInfo));
  EXPECT_THAT(loaded_.parameters().values(),
              ElementsAreArray(saved_.parameters().values()));
}

TEST_F(CheckpointTest, RefusesFilesThatAreNoCheckpoint) {
  const Safetensors good = ReadSafetensors(path_).value();
  std::vector<Safetensors> contents(4, good);
  contents[0].metadata["seed"] = "x";
  contents[1].metadata["epochs"] = "-1";
  contents[2].metadata["epochs"] = "";
  contents[3].metadata.erase("model");
  for (const Safetensors& content : contents) {
    ASSERT_THAT(WriteSafetensors(path_, content), IsOk());
    EXPECT_THAT(
        LoadCheckpoint(path_, loaded_.parameters(), loaded_.buffers()),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(StartsWith(path_), HasSubstr("not a checkpoint"))));
  }
}

TEST_F(CheckpointTest, SaysHowConvolutionsWereComputedSinceThereIsAChoice) {
  Safetensors content = ReadSafetensors(path_).value();
  EXPECT_EQ(content.metadata["convolution"], "winograd");
  content.metadata["convolution"] = "fft";
  ASSERT_THAT(WriteSafetensors(path_, content), IsOk());
  EXPECT_THAT(LoadCheckpoint(path_, loaded_.parameters(), loaded_.buffers()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith(path_), HasSubstr("auto, direct"))));
  content.metadata.erase("convolution");  // As in older files.
  ASSERT_THAT(WriteSafetensors(path_, content), IsOk());
  const auto info =
      LoadCheckpoint(path_, loaded_.parameters(), loaded_.buffers());
  ASSERT_THAT(info, IsOk());
  EXPECT_EQ(info->convolution, ConvolutionAlgorithm::kDirect);
}

// Tests of the optimizer's state.

constexpr OptimizerOptions kMomentum = {.momentum = 0.9,
                                        .weight_decay = 1.0 / 3};
constexpr OptimizerOptions kAdamW = {.kind = OptimizerKind::kAdamW};

// Returns a state of the optimizer for CountingModel, whose numbers begin with
// `first`.
OptimizerState StateFrom(const OptimizerOptions& options, float first) {
  OptimizerState state = {.steps = static_cast<int64_t>(first), .arrays = {}};
  for (size_t i = 0; i < StateNames(options).size(); ++i) {
    state.arrays.emplace_back(CountingModel().parameters().values().size());
    std::iota(state.arrays[i].begin(), state.arrays[i].end(), first);
    first += 100;
  }
  return state;
}

// Checkpoints in a folder that is empty at first.
class StateTest : public testing::Test {
 protected:
  StateTest() : folder_(testing::TempDir() + "/states") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ + "/weights.safetensors";
  }

  absl::Status Save(const OptimizerOptions& options, float first) {
    CheckpointInfo info = kInfo;
    info.optimizer = options;
    return SaveCheckpoint(path_, info, model_.parameters(), model_.buffers(),
                          StateFrom(options, first));
  }

  absl::StatusOr<OptimizerState> Load() {
    CountingModel model;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const CheckpointInfo info,
        LoadCheckpoint(path_, model.parameters(), model.buffers()));
    return LoadOptimizerState(path_, info, model.parameters());
  }

  // Returns the names of the folder's files.
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  // Returns the path of the state's file.
  std::string StateFile() const {
    for (const std::string& name : Files()) {
      if (absl::StartsWith(name, "optimizer.")) return folder_ + "/" + name;
    }
    return "";
  }

  const std::string folder_;
  std::string path_;
  CountingModel model_;
};

TEST_F(StateTest, IsReadBackAndLeavesTheWeightsAlone) {
  const NamedTensors weights = WeightsOf(model_).tensors;
  for (const OptimizerOptions& options : {kMomentum, kAdamW}) {
    ASSERT_THAT(Save(options, 1), IsOk());
    EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(options, 1)));
    // PyTorch loads these strictly.
    EXPECT_EQ(ReadSafetensors(path_).value().tensors, weights);
    EXPECT_EQ(ReadInfo(path_).value().optimizer, options);
    EXPECT_EQ(Files().size(), 2u);
  }
  const NamedTensors state = ReadSafetensors(StateFile()).value().tensors;
  EXPECT_EQ(state.size(), 2 * model_.parameters().specs().size() + 1);
  for (const ParameterSpec& spec : model_.parameters().specs()) {
    EXPECT_EQ(state.at(spec.name + ".exp_avg_sq").shape, spec.shape);
  }
}

TEST_F(StateTest, PlainSgdHasNoneAndItsFileHasNoNewMetadata) {
  ASSERT_THAT(Save(kAdamW, 1), IsOk());
  ASSERT_THAT(Save({}, 0), IsOk());
  EXPECT_EQ(Files(), std::set<std::string>{"weights.safetensors"});
  EXPECT_EQ(ReadSafetensors(path_).value().metadata.size(), 4u);
  EXPECT_THAT(Load(), IsOkAndHolds(OptimizerState()));
  ASSERT_THAT(Save({.weight_decay = 0.5}, 0), IsOk());
  EXPECT_EQ(Files(), std::set<std::string>{"weights.safetensors"});
  EXPECT_EQ(ReadInfo(path_).value().optimizer.weight_decay, 0.5);
}

// A process may die after the state is written and before the weights are.
TEST_F(StateTest, TheOldPairIsWholeUntilTheNewOneIs) {
  ASSERT_THAT(Save(kAdamW, 1), IsOk());
  const std::set<std::string> old = Files();
  // Nothing can be written to a folder.
  std::filesystem::create_directories(path_ + ".partial/x");
  EXPECT_THAT(Save(kAdamW, 2), Not(IsOk()));
  EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(kAdamW, 1)));
  std::filesystem::remove_all(path_ + ".partial");
  EXPECT_EQ(Files().size(), 3u);
  ASSERT_THAT(Save(kAdamW, 2), IsOk());
  EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(kAdamW, 2)));
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_NE(Files(), old);
  // A run that is repeated writes the same pair.
  ASSERT_THAT(Save(kAdamW, 2), IsOk());
  EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(kAdamW, 2)));
}

TEST_F(StateTest, StaysWithACopyOfTheWeightsInTheFolder) {
  const std::string copy = folder_ + "/epoch3.safetensors";
  const std::string notes = folder_ + "/optimizer.notes.safetensors";
  std::ofstream(notes) << "not a state";
  ASSERT_THAT(Save(kAdamW, 1), IsOk());
  std::filesystem::copy_file(path_, copy);
  ASSERT_THAT(Save(kAdamW, 2), IsOk());
  ASSERT_THAT(Save(kAdamW, 3), IsOk());
  EXPECT_EQ(Files().size(), 5u);
  EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(kAdamW, 3)));
  const std::string path = std::exchange(path_, copy);
  EXPECT_THAT(Load(), IsOkAndHolds(StateFrom(kAdamW, 1)));
  path_ = path;
  std::filesystem::remove(copy);
  ASSERT_THAT(Save(kAdamW, 4), IsOk());
  EXPECT_EQ(Files().size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(notes));
}

TEST_F(StateTest, IsRefusedIfItIsAnotherOptimizers) {
  CheckpointInfo info = kInfo;
  info.optimizer = kAdamW;
  OptimizerState longer = StateFrom(kAdamW, 1);
  longer.arrays[1].push_back(0);
  for (const OptimizerState& state :
       {OptimizerState(), StateFrom(kMomentum, 1), longer}) {
    EXPECT_THAT(SaveCheckpoint(path_, info, model_.parameters(),
                               model_.buffers(), state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("arrays, but must have 2 of ")));
  }
  EXPECT_EQ(Files().size(), 0u);
}

TEST_F(StateTest, RefusesFilesThatAreNotItsOwn) {
  ASSERT_THAT(Save(kAdamW, 1), IsOk());
  const std::string file = StateFile();
  const std::string bytes = ReadFile(file).value();
  std::string flipped = bytes;
  flipped.back() ^= 1;
  for (const std::string& bad :
       {std::string(), bytes.substr(0, bytes.size() - 4), flipped}) {
    std::ofstream(file, std::ios::trunc) << bad;
    EXPECT_THAT(
        Load(),
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(StartsWith(file), HasSubstr("is not the optimizer's"),
                       HasSubstr(path_), Not(HasSubstr("\n")))));
  }
  std::filesystem::remove(file);
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kNotFound, StartsWith(file)));
}

// Another program may have written a file with the right hash.
TEST_F(StateTest, RefusesTensorsOfAnotherModel) {
  const Parameters other({{"p0", {2}}});
  CheckpointInfo info = kInfo;
  info.optimizer = kMomentum;
  ASSERT_THAT(SaveCheckpoint(path_, info, other, Buffers(),
                             {.steps = 1, .arrays = {{1, 2}}}),
              IsOk());
  EXPECT_THAT(
      LoadOptimizerState(path_, ReadInfo(path_).value(), model_.parameters()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(StartsWith(StateFile()), HasSubstr("tensor"))));
}

TEST_F(StateTest, RefusesMetadataThatNoRunHasWritten) {
  ASSERT_THAT(Save(kAdamW, 1), IsOk());
  const Safetensors good = ReadSafetensors(path_).value();
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"optimizer", "adam"},
      {"optimizer", "sgd"},
      {"adam_beta1", "1"},
      {"momentum", "x"},
      {"optimizer_state", ""},
      {"optimizer_state", "../../../../../x"},
      {"optimizer_state", "../../../../tmp/"}};
  for (const auto& [key, value] : changes) {
    Safetensors bad = good;
    bad.metadata[key] = value;
    ASSERT_THAT(WriteSafetensors(path_, bad), IsOk());
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(StartsWith(path_),
                                       HasSubstr("metadata's optimizer"))))
        << key << " " << value;
  }
}

TEST(CheckSameOptimizerTest, NamesTheFirstFlagThatDiffers) {
  const auto check = [](const OptimizerOptions& theirs,
                        const OptimizerOptions& ours) {
    CheckpointInfo info = kInfo;
    info.optimizer = theirs;
    return CheckSameOptimizer("file", info, ours);
  };
  for (const OptimizerOptions& options : {{}, kMomentum, kAdamW}) {
    EXPECT_THAT(check(options, options), IsOk());
  }
  constexpr auto kOther = OptimizerKind::kAdamW;
  struct Change {
    OptimizerOptions theirs, ours;
    const char* message;
  };
  const std::vector<Change> changes = {
      {{},
       kAdamW,
       "--optimizer=adamw: file comes from a run with --optimizer=sgd"},
      {{},
       {.momentum = 0.9},
       "--momentum=0.9: file comes from a run with --momentum=0"},
      {kMomentum,
       {.momentum = 0.9},
       "--weight_decay=0: file comes from a run with "
       "--weight_decay=0.3333333333333333"},
      {kAdamW,
       {.kind = kOther, .beta1 = 0.8},
       "--adam_beta1=0.8: file comes from a run with --adam_beta1=0.9"},
      {kAdamW,
       {.kind = kOther, .beta2 = 0.8},
       "--adam_beta2=0.8: file comes from a run with --adam_beta2=0.999"},
      {kAdamW,
       {.kind = kOther, .epsilon = 1e-7},
       "--adam_epsilon=1e-07: file comes from a run with "
       "--adam_epsilon=1e-08"}};
  for (const auto& [theirs, ours, message] : changes) {
    EXPECT_EQ(check(theirs, ours).message(), message);
  }
}

// Runs that continue. The sums of CountingModel's gradients are exact, so the
// bits do not depend on the number of ranks.

// Takes steps [begin, end), each on eight samples, which the ranks share.
absl::Status TakeSteps(Communicator& group, RankSteps& steps, int begin,
                       int end) {
  for (int step = begin; step < end; ++step) {
    std::vector<float> images;
    std::vector<int32_t> labels;
    for (int i = group.rank(); i < 8; i += group.world_size()) {
      const int sample = 8 * step + i;
      images.insert(images.end(), {0, static_cast<float>(sample) / 255});
      labels.push_back(sample % 7);
    }
    LOCKSTEP_RETURN_IF_ERROR(
        steps.Step({.images = images, .labels = labels}, 8, 0.25f, true)
            .status());
  }
  return absl::OkStatus();
}

// Returns the path of a rank's checkpoint of the run that writes to `folder`.
std::string RankPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/", rank, "/weights.safetensors");
}

// Trains from a checkpoint at `from`, or from the start if it is empty, on
// world_size ranks. Each rank writes a checkpoint below `to`. If `first_alone`,
// only rank 0 reads the checkpoint.
void Train(const OptimizerOptions& options, int world_size,
           const std::string& from, int begin, int end, const std::string& to,
           bool first_alone = false) {
  const auto train = [&](Communicator& group) -> absl::Status {
    CountingModel model(0.5f);
    ModelSteps steps(group, model, /*bucket_bytes=*/1, options);
    if (!from.empty() && (group.rank() == 0 || !first_alone)) {
      CountingModel read;
      Buffers none;
      LOCKSTEP_ASSIGN_OR_RETURN(const CheckpointInfo info,
                                LoadCheckpoint(from, read.parameters(), none));
      LOCKSTEP_RETURN_IF_ERROR(
          steps.Write(read.parameters(), CountingModel().buffers()));
      LOCKSTEP_ASSIGN_OR_RETURN(
          const OptimizerState state,
          LoadOptimizerState(from, info, read.parameters()));
      LOCKSTEP_RETURN_IF_ERROR(steps.WriteOptimizer(state));
    }
    LOCKSTEP_RETURN_IF_ERROR(steps.Begin());
    LOCKSTEP_RETURN_IF_ERROR(TakeSteps(group, steps, begin, end));
    LOCKSTEP_ASSIGN_OR_RETURN(const OptimizerState state,
                              steps.ReadOptimizer());
    // Every rank has what rank 0 saves.
    const std::string own = RankPath(to, group.rank());
    std::filesystem::create_directories(
        std::filesystem::path(own).parent_path());
    CheckpointInfo info = kInfo;
    info.optimizer = options;
    return SaveCheckpoint(own, info, model.parameters(), Buffers(), state);
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, world_size, train), Each(IsOk()));
}

class ResumeTest : public StateTest {
 protected:
  std::string Folder(const char* name) const { return folder_ + "/" + name; }

  // Expects of all ranks of a run the weights, and the state that the metadata
  // name.
  void ExpectOfAll(int world_size, const std::string& run,
                   const std::string& wanted) {
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(ReadSafetensors(RankPath(run, rank)).value(),
                ReadSafetensors(RankPath(wanted, 0)).value())
          << rank;
    }
  }

  const std::string whole_ = Folder("whole"), part_ = Folder("part"),
                    rest_ = Folder("rest");
};

TEST_F(ResumeTest, HasTheBitsOfARunThatWasNotInterrupted) {
  for (const OptimizerOptions& options :
       {OptimizerOptions(), OptimizerOptions{.weight_decay = 0.1}, kMomentum,
        kAdamW}) {
    Train(options, 1, "", 0, 6, whole_);
    Train(options, 2, "", 0, 3, part_);
    EXPECT_NE(ReadSafetensors(RankPath(part_, 0)).value(),
              ReadSafetensors(RankPath(whole_, 0)).value());
    for (const int world_size : {1, 2, 3, 4}) {
      Train(options, world_size, RankPath(part_, 0), 3, 6, rest_);
      ExpectOfAll(world_size, rest_, whole_);
    }
  }
}

TEST_F(ResumeTest, EveryRankBeginsWithRankZerosState) {
  Train(kAdamW, 1, "", 0, 6, whole_);
  Train(kAdamW, 1, "", 0, 3, part_);
  Train(kAdamW, 3, RankPath(part_, 0), 3, 6, rest_, /*first_alone=*/true);
  ExpectOfAll(3, rest_, whole_);
}

}  // namespace
}  // namespace lockstep
