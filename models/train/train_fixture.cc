#include "models/train/train_fixture.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

constexpr char kProgram[] = "models/train/train";

}  // namespace

std::string ReadText(const std::string& path) {
  return ReadFile(path).value_or("");
}

pid_t FindRank(const Subprocess& program, int rank) {
  for (const pid_t pid : ProcessesWithVariable(absl::StrCat("RANK=", rank))) {
    if (DescendsFrom(pid, program.pid())) return pid;
  }
  return -1;
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

Subprocess TrainFixture::Start(std::vector<std::string> flags,
                               const Environment& environment) {
  flags.insert(flags.begin(), kProgram);
  absl::StatusOr<Subprocess> program =
      Subprocess::Start(flags, {.environment = environment});
  EXPECT_THAT(program, IsOk());
  return *std::move(program);
}

SubprocessResult TrainFixture::Run(std::vector<std::string> flags,
                                   const Environment& environment) {
  flags.insert(flags.begin(), kProgram);
  return RunSubprocess(flags, kDeadline, {.environment = environment});
}

Subprocess TrainFixture::StartEndless(std::vector<std::string> flags,
                                      const std::string& temp) {
  EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  flags.insert(flags.end(), {"--data_dir=" + data(), "--epochs=1000000"});
  Subprocess program = Start(std::move(flags), {{"TMPDIR", temp}});
  EXPECT_TRUE(program.AwaitOutput("test accuracy", kDeadline)) << program.err();
  return program;
}

std::string TrainFixture::Train(const std::string& name,
                                std::vector<std::string> flags) {
  const std::string dir = absl::StrCat(root_, "/", name);
  flags.insert(flags.begin(), {"--data_dir=" + data(), "--batch_size=64",
                               "--lr=0.5", "--output_dir=" + dir});
  const SubprocessResult result = Run(std::move(flags));
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return dir;
}

NamedTensors TrainFixture::WeightsOf(const std::string& dir) const {
  const absl::StatusOr<Safetensors> content =
      ReadSafetensors(dir + "/weights.safetensors");
  EXPECT_THAT(content, IsOk());
  return content.ok() ? content->tensors : NamedTensors();
}

nlohmann::json TrainFixture::MetricsOf(const std::string& dir) const {
  return nlohmann::json::parse(ReadText(dir + "/metrics.json"), nullptr,
                               /*allow_exceptions=*/false);
}

void TrainFixture::ExpectEndAfterDeath(Subprocess& program, int victim,
                                       const std::string& temp) {
  const pid_t pid = FindRank(program, victim);
  ASSERT_GT(pid, 0);
  const absl::Time killed = absl::Now();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(program.Wait(kDeadline), 128 + SIGKILL);
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  EXPECT_THAT(program.err(),
              testing::HasSubstr(absl::StrCat("rank ", victim, " (pid ", pid,
                                              ") was killed by signal 9")));
  const int other = victim == 0 ? 1 : 0;
  EXPECT_THAT(program.err(),
              testing::ContainsRegex(absl::StrCat(
                  "train: rank ", other, ": .*rank ", victim, "[^0-9]")));
  // The program itself, and nothing else, waits to be reaped.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), program.pid());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  EXPECT_TRUE(std::filesystem::is_empty(temp));
}

}  // namespace lockstep
