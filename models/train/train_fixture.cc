// Runs of the train command.
#include "models/train/train_fixture.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/program.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "models/io/safetensors.h"

namespace lockstep {

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TrainFixture::TrainFixture(const std::string& name)
    : root_(absl::StrCat(testing::TempDir(), "/", name)) {
  std::filesystem::remove_all(root_);
  std::filesystem::create_directories(data());
  WriteIdxFiles(data(), kTrain, kTest);
}

std::string TrainFixture::Folder(const std::string& name) const {
  const std::string path = absl::StrCat(root_, "/", name);
  std::filesystem::create_directories(path);
  return path;
}

std::unique_ptr<Program> TrainFixture::Start(std::vector<std::string> flags,
                                             const Environment& environment) {
  flags.insert(flags.begin(), "models/train");
  return std::make_unique<Program>(Folder(absl::StrCat("program", ++programs_)),
                                   flags, environment);
}

ProgramResult TrainFixture::Run(const std::vector<std::string>& flags,
                                const Environment& environment) {
  return Start(flags, environment)->Wait(kDeadline);
}

std::string TrainFixture::Train(const std::string& name,
                                std::vector<std::string> flags) {
  const std::string dir = absl::StrCat(root_, "/", name);
  flags.insert(flags.begin(), {"--data_dir=" + data(), "--batch_size=64",
                               "--lr=0.5", "--output_dir=" + dir});
  const ProgramResult result = Run(flags);
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return dir;
}

TrainFixture::Weights TrainFixture::WeightsOf(const std::string& dir) const {
  const absl::StatusOr<Safetensors> content =
      ReadSafetensors(dir + "/weights.safetensors");
  EXPECT_THAT(content, IsOk());
  return content.ok() ? content->tensors : Weights();
}

nlohmann::json TrainFixture::MetricsOf(const std::string& dir) const {
  return nlohmann::json::parse(ReadText(dir + "/metrics.json"), nullptr,
                               /*allow_exceptions=*/false);
}

ProgramResult TrainFixture::ExpectEndAfterDeath(Program& program, int victim) {
  const pid_t pid =
      FindDescendant(program.pid(), absl::StrCat("RANK=", victim));
  EXPECT_GT(pid, 0);
  if (pid <= 0) return program.Wait(absl::ZeroDuration());
  const absl::Time killed = absl::Now();
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  const ProgramResult result = program.Wait(kDeadline);
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  EXPECT_EQ(result.exit_status, 128 + SIGKILL);
  EXPECT_THAT(result.err,
              testing::HasSubstr(absl::StrCat("rank ", victim, " (pid ", pid,
                                              ") was killed by signal 9")));
  const int other = victim == 0 ? 1 : 0;
  EXPECT_THAT(result.err,
              testing::ContainsRegex(absl::StrCat(
                  "train: rank ", other, ": .*rank ", victim, "[^0-9]")));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  return result;
}

}  // namespace lockstep
