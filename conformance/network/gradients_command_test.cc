// The gradients command gives ResNet-18's gradients, buffers and loss: those of
// the reference, and, from files that PyTorch wrote, those of PyTorch.
//
// The images have 28 x 28 pixels, with two million ReLU inputs, of which some
// are zero but for rounding. Where one is, a pixel's part of one sample's
// gradient comes or goes, which changes a small tensor's gradient by up to a
// hundredth of its norm or so. Gradients may therefore differ by kGradient of
// it. Local and synchronised batch norm differ by ten times that in most
// tensors, which is asserted. What rounding alone may do is the subject of
// network_equivalence_test. Losses and buffers have no such jumps.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "conformance/checks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/reference/bounded.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/test_inputs.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kDeadlineSeconds = 200;
constexpr int64_t kSamples = 5;
constexpr double kGradient = 3e-2;  // Of a tensor's norm.
constexpr double kSmooth = 1e-5;    // Of losses and of buffers' norms.

// How many samples each rank has, as the command deals them, by world size.
const std::map<int, std::vector<int64_t>> kDeals = {
    {1, {5}}, {2, {3, 2}}, {4, {2, 2, 1, 0}}};

// Whether that world size is tried, where a slice (base/slice.h) has these.
bool IsTried(int nproc, const std::vector<int>& slice) {
  return IsExhaustive() || std::ranges::count(slice, nproc) > 0;
}

// What a step gives, by tensor; the counters left out.
struct Answer {
  double loss = 0;
  std::map<std::string, std::vector<double>> tensors;
};

double DistanceOf(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return Norm(a);
}

// OK if `got` is `want`: kDataLoss with the first tensor that is not.
absl::Status CheckAnswer(const Answer& got, const Answer& want) {
  const auto check = [](const std::string& what, double distance,
                        double tolerance) {
    if (distance <= tolerance) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(what, " is ", distance, " away, may be ", tolerance));
  };
  LOCKSTEP_RETURN_IF_ERROR(
      check("loss", std::abs(got.loss - want.loss), kSmooth * want.loss));
  const auto compare = [&](const ParameterSpec& spec, double tolerance) {
    const auto found = got.tensors.find(spec.name);
    if (found == got.tensors.end() ||
        static_cast<int64_t>(found->second.size()) != spec.size) {
      return absl::DataLossError(absl::StrCat("no tensor ", spec.name));
    }
    return check(spec.name,
                 DistanceOf(found->second, want.tensors.at(spec.name)),
                 tolerance);
  };
  double norm = 0;
  for (const ParameterSpec& spec : ResNetParameterSpecs()) {
    // A gradient that is zero is compared with its convolution's, the last.
    if (!HasZeroGradient(spec)) norm = Norm(want.tensors.at(spec.name));
    LOCKSTEP_RETURN_IF_ERROR(compare(spec, kGradient * norm));
  }
  for (const ParameterSpec& spec : ResNetBufferSpecs()) {
    LOCKSTEP_RETURN_IF_ERROR(
        compare(spec, kSmooth * Norm(want.tensors.at(spec.name))));
  }
  return absl::OkStatus();
}

template <typename T>
std::vector<double> Widened(const NamedTensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return {values.begin(), values.end()};
}

// A file with an answer. Every counter in it must have become `batches`.
absl::StatusOr<Answer> ReadAnswer(const std::string& path, double batches) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors file, ReadSafetensors(path));
  Answer answer;
  for (const auto& [name, tensor] : file.tensors) {
    if (tensor.type == DataType::kInt64) {
      EXPECT_EQ(Widened<int64_t>(tensor), std::vector<double>{batches}) << name;
      continue;
    }
    answer.tensors[name] = tensor.type == DataType::kFloat64
                               ? Widened<double>(tensor)
                               : Widened<float>(tensor);
  }
  answer.loss = answer.tensors.at("loss").at(0);
  EXPECT_EQ(answer.tensors.size(),
            ResNetParameterSpecs().size() + ResNetBufferSpecs().size() + 1);
  return answer;
}

Answer AnswerOf(double loss_sum, const std::vector<double>& gradient,
                const std::vector<double>& running) {
  Answer answer{.loss = loss_sum / kSamples, .tensors = {}};
  const auto add = [&](const ParameterSpec& spec,
                       const std::vector<double>& all) {
    const auto begin = all.begin() + spec.offset;
    answer.tensors[spec.name] = {begin, begin + spec.size};
  };
  for (const ParameterSpec& spec : ResNetParameterSpecs()) add(spec, gradient);
  for (const ParameterSpec& spec : ResNetBufferSpecs()) add(spec, running);
  return answer;
}

// Runs the command from `folder` on `weights` and `batch` there.
absl::StatusOr<Answer> RunGradients(const std::string& folder, int nproc,
                                    bool sync_bn) {
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("env BUILD_WORKING_DIRECTORY=", folder,
                   " models/train/gradients --model=resnet18 --weights=weights "
                   "--batch=batch --out=out --nproc=",
                   nproc, sync_bn ? " --sync_bn" : ""),
      kDeadlineSeconds);
  if (outcome.exit_status != 0) return absl::InternalError(outcome.output);
  return ReadAnswer(folder + "/out", /*batches=*/1);
}

// In how many parameters' gradients by ten tolerances.
size_t TensorsThatDiffer(const Answer& a, const Answer& b) {
  size_t count = 0;
  for (const ParameterSpec& spec : ResNetParameterSpecs()) {
    if (HasZeroGradient(spec)) continue;
    const std::vector<double>& want = b.tensors.at(spec.name);
    const double distance = DistanceOf(a.tensors.at(spec.name), want);
    if (distance > 10 * kGradient * Norm(want)) ++count;
  }
  return count;
}

// The command's answers to the files in `folder` are that of one rank and,
// where batch norm is local, `local` by world size; and those two differ.
// slice: the world sizes that a slice tries.
void ExpectAnswers(const std::string& folder, const std::vector<int>& slice,
                   const std::map<int, Answer>& local) {
  const Answer& synchronised = local.at(1);
  for (const auto& [nproc, without_sync] : local) {
    if (!IsTried(nproc, slice)) continue;
    const auto with = RunGradients(folder, nproc, /*sync_bn=*/true);
    ASSERT_THAT(with, IsOk()) << nproc;
    EXPECT_THAT(CheckAnswer(*with, synchronised), IsOk()) << nproc;
    const auto without = RunGradients(folder, nproc, /*sync_bn=*/false);
    ASSERT_THAT(without, IsOk()) << nproc;
    EXPECT_THAT(CheckAnswer(*without, without_sync), IsOk()) << nproc;
    if (nproc == 1) continue;
    EXPECT_THAT(CheckAnswer(*without, synchronised), Not(IsOk())) << nproc;
    EXPECT_THAT(CheckAnswer(*with, without_sync), Not(IsOk())) << nproc;
    EXPECT_GT(2 * TensorsThatDiffer(without_sync, synchronised),
              ResNetParameterSpecs().size())
        << nproc;
  }
}

std::string EmptyFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// The fixture's weights as a file, beside RandomBatch.
void WriteInputs(const std::string& folder, const Safetensors& batch) {
  const std::unique_ptr<Model> model = CreateResNet18(/*seed=*/0);
  const std::vector<float> parameters = NetworkParameters(1, kResNet);
  const std::vector<float> running = NetworkRunning(1, kResNet);
  std::ranges::copy(parameters, model->parameters().values().begin());
  std::ranges::copy(running, model->buffers().floats().begin());
  ASSERT_THAT(WriteSafetensors(folder + "/weights", WeightsOf(*model)), IsOk());
  ASSERT_THAT(WriteSafetensors(folder + "/batch", batch), IsOk());
}

TEST(GradientsCommandTest, GivesWhatTheReferenceGives) {
  const Safetensors batch = RandomBatch(kSamples);
  const std::string folder = EmptyFolder("gradients_reference");
  WriteInputs(folder, batch);
  Samples samples{.images = batch.tensors.at("images").Values<float>(),
                  .labels = {}};
  for (const double label : Widened<int64_t>(batch.tensors.at("labels"))) {
    samples.labels.push_back(static_cast<int32_t>(label));
  }
  const std::vector<float> parameters = NetworkParameters(1, kResNet);
  const std::vector<float> running = NetworkRunning(1, kResNet);
  std::map<int, Answer> local;
  for (const auto& [nproc, deal] : kDeals) {
    if (!IsTried(nproc, {1, 2})) continue;
    const LocalStep step =
        LocalReferenceStep(parameters, running, samples, deal);
    local[nproc] = AnswerOf(step.loss_sum, step.gradient, step.running[0]);
  }
  ExpectAnswers(folder, {1, 2}, local);
}

// A Python that has PyTorch; empty if there is none.
std::string PythonWithTorch(std::string& why) {
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    const CommandOutcome outcome = RunCommand(
        absl::StrCat(python, " -c 'import torch, numpy'"), kDeadlineSeconds);
    if (outcome.exit_status == 0) return python;
    const std::string error = outcome.output.substr(
        outcome.output.find_last_of('\n', outcome.output.size() - 2) + 1);
    absl::StrAppend(&why, python, ": ", error);
  }
  return "";
}

TEST(GradientsCommandTest, GivesWhatPyTorchGivesOnItsOwnFiles) {
  std::string why;
  const std::string python = PythonWithTorch(why);
  if (python.empty()) GTEST_SKIP() << "no PyTorch: " << why;
  const std::string folder = EmptyFolder("gradients_torch");
  const CommandOutcome outcome = RunCommand(
      absl::StrCat(python,
                   " -B conformance/network/testdata/torch_gradients.py ",
                   folder, IsExhaustive() ? " 1 2 4" : " 1 4"),
      kDeadlineSeconds);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  std::map<int, Answer> local;
  for (const auto& [nproc, deal] : kDeals) {
    if (!IsTried(nproc, {1, 4})) continue;
    auto answer = ReadAnswer(absl::StrCat(folder, "/torch_", nproc), 1);
    ASSERT_THAT(answer, IsOk());
    local[nproc] = *std::move(answer);
  }
  ExpectAnswers(folder, {4}, local);
}

}  // namespace
}  // namespace lockstep::conformance
