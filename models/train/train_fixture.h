// What tests of the train command share: a data set, folders, runs.
#ifndef LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_
#define LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"
#include "models/io/model_tensors.h"

namespace lockstep {

// A file's text; empty if there is none.
std::string ReadText(const std::string& path);

class TrainFixture : public testing::Test {
 protected:
  static constexpr absl::Duration kDeadline = absl::Seconds(120);
  static constexpr int64_t kTrain = 200;  // Images of the data set.
  static constexpr int64_t kTest = 37;

  // name: of a folder under the test's own, emptied.
  explicit TrainFixture(const std::string& name);

  // The data set, in files (WriteIdxFiles).
  std::string data() const { return root_ + "/data"; }

  // A new folder.
  std::string Folder(const std::string& name) const;

  // The train command.
  Subprocess Start(std::vector<std::string> flags,
                   const Environment& environment = {});
  SubprocessResult Run(std::vector<std::string> flags,
                       const Environment& environment = {});

  // Starts a run of more epochs than the test will wait for, with the folder
  // `temp` for what is temporary, and waits for the end of its first. What the
  // run leaves behind becomes a child of this process.
  Subprocess StartEndless(std::vector<std::string> flags,
                          const std::string& temp);

  // Trains into a new folder, which it returns; expects success.
  std::string Train(const std::string& name, std::vector<std::string> flags);

  // What a run left in its folder.
  NamedTensors WeightsOf(const std::string& dir) const;
  nlohmann::json MetricsOf(const std::string& dir) const;

  // Kills rank `victim` of an endless run, and expects that the run then ends
  // within two seconds, that the launcher and another rank name the victim, and
  // that no process and no file in `temp` is left.
  void ExpectEndAfterDeath(Subprocess& program, int victim,
                           const std::string& temp);

  const std::string root_;
};

// The process of the run's rank `rank`; -1 if there is none.
pid_t FindRank(const Subprocess& program, int rank);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_
