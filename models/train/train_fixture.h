// What tests of the train command share: a data set, folders, runs.
#ifndef LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_
#define LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/program.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"

namespace lockstep {

// A file's text; empty if there is none.
std::string ReadText(const std::string& path);

class TrainFixture : public testing::Test {
 protected:
  using Environment = std::map<std::string, std::string>;
  using Weights = std::map<std::string, NamedTensor>;

  static constexpr absl::Duration kDeadline = absl::Seconds(120);
  static constexpr int64_t kTrain = 200;  // Images of the data set.
  static constexpr int64_t kTest = 37;

  // name: of a folder under the test's own, emptied.
  explicit TrainFixture(const std::string& name);

  // The data set, in files (WriteIdxFiles).
  std::string data() const { return root_ + "/data"; }

  // A new folder.
  std::string Folder(const std::string& name) const;

  // models/train.
  std::unique_ptr<Program> Start(std::vector<std::string> flags,
                                 const Environment& environment = {});
  ProgramResult Run(const std::vector<std::string>& flags,
                    const Environment& environment = {});

  // Trains into a new folder, which it returns; expects success.
  std::string Train(const std::string& name, std::vector<std::string> flags);

  // What a run left in its folder.
  Weights WeightsOf(const std::string& dir) const;
  nlohmann::json MetricsOf(const std::string& dir) const;

  // Kills rank `victim` of a run that was started with --nproc=`nproc`, and
  // expects that the run then ends within two seconds, that the launcher and a
  // rank name the victim, and that no process is left, of which this one must
  // be the reaper. Returns what the run printed.
  ProgramResult ExpectEndAfterDeath(Program& program, int victim);

  const std::string root_;

 private:
  int programs_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TRAIN_FIXTURE_H_
