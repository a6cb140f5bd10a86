// Checks that the gradients command returns a network's gradients, buffers and
// loss: the reference's, and, from files that PyTorch wrote, PyTorch's.
//
// ResNet-18's images have 28 x 28 pixels, with two million ReLU inputs. Some of
// these are zero up to rounding. If the sign of such an input changes, a
// pixel's part of one sample's gradient appears or disappears. That changes a
// small tensor's gradient by up to about a hundredth of its norm. Gradients may
// therefore differ by kGradient times their norm. Local and synchronised batch
// norm differ by ten times that bound in most tensors, which the test asserts.
// network_equivalence_test covers the effect of rounding alone. Losses and
// buffers have no such jumps.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
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
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/train/test_inputs.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kDeadlineSeconds = 200;
constexpr int64_t kSamples = 5;
constexpr double kGradient = 3e-2;  // Relative to a tensor's norm.
constexpr double kSmooth = 1e-5;    // Relative to losses and to buffers' norms.

const TestedNetwork& ResNet18() {
  static const auto& tested =
      *new TestedNetwork("resnet18_d2l", {1, 28, 28, 10}, {});
  return tested;
}

// A network without batch norm. Its images have three channels and are not
// square.
const TestedNetwork& Vit() {
  static const auto& tested = *new TestedNetwork(
      "vit:patch=4,width=24,depth=2,heads=3", {3, 16, 12, 10}, {});
  return tested;
}

// The number of samples on each rank, as the command deals them, by world size.
const std::map<int, std::vector<int64_t>> kDeals = {
    {1, {5}}, {2, {3, 2}}, {4, {2, 2, 1, 0}}};

// Whether a run tries the world size. A run that is not exhaustive tries
// `slice` (base/slice.h).
bool IsTried(int nproc, const std::vector<int>& slice) {
  return IsExhaustive() || std::ranges::count(slice, nproc) > 0;
}

// The result of a step, by tensor, without the counters.
struct Answer {
  double loss = 0;
  std::map<std::string, std::vector<double>> tensors;
};

double DistanceOf(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return Norm(a);
}

// Checks that `got` is `want`. Error: kDataLoss with the first tensor that
// differs.
absl::Status CheckAnswer(const TestedNetwork& tested, const Answer& got,
                         const Answer& want) {
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
  for (const ParameterSpec& spec : tested.specs()) {
    // A zero gradient is compared relative to the norm of its convolution's,
    // the last.
    if (!tested.HasZeroGradient(spec)) norm = Norm(want.tensors.at(spec.name));
    LOCKSTEP_RETURN_IF_ERROR(compare(spec, kGradient * norm));
  }
  for (const ParameterSpec& spec : tested.buffer_specs()) {
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

// Reads a file with an answer. Every counter in it must equal `batches`.
absl::StatusOr<Answer> ReadAnswer(const TestedNetwork& tested,
                                  const std::string& path, double batches) {
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
  answer.tensors.erase("evaluation");  // Only PyTorch writes this tensor.
  answer.tensors.erase("outputs");
  EXPECT_EQ(answer.tensors.size(),
            tested.specs().size() + tested.buffer_specs().size() + 1);
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
  for (const ParameterSpec& spec : ResNet18().specs()) add(spec, gradient);
  for (const ParameterSpec& spec : ResNet18().buffer_specs())
    add(spec, running);
  return answer;
}

// Runs the command from `folder` on `weights` and `batch` there.
absl::StatusOr<Answer> RunGradients(const TestedNetwork& tested,
                                    const std::string& folder, int nproc,
                                    bool sync_bn) {
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("env BUILD_WORKING_DIRECTORY=", folder,
                   " models/train/gradients --model=", tested.spec(),
                   " --weights=weights --batch=batch --out=out --nproc=", nproc,
                   sync_bn ? " --sync_bn" : ""),
      kDeadlineSeconds);
  if (outcome.exit_status != 0) return absl::InternalError(outcome.output);
  return ReadAnswer(tested, folder + "/out", /*batches=*/1);
}

// Returns the number of parameters whose gradients differ by ten tolerances.
size_t TensorsThatDiffer(const Answer& a, const Answer& b) {
  size_t count = 0;
  for (const ParameterSpec& spec : ResNet18().specs()) {
    if (ResNet18().HasZeroGradient(spec)) continue;
    const std::vector<double>& want = b.tensors.at(spec.name);
    const double distance = DistanceOf(a.tensors.at(spec.name), want);
    if (distance > 10 * kGradient * Norm(want)) ++count;
  }
  return count;
}

// Expects that the command's answers to the files in `folder` are those of one
// rank. With local batch norm, they must be `local` by world size, and the two
// answers must differ. slice: the world sizes that a slice tries.
void ExpectAnswers(const std::string& folder, const std::vector<int>& slice,
                   const std::map<int, Answer>& local) {
  const Answer& synchronised = local.at(1);
  for (const auto& [nproc, without_sync] : local) {
    if (!IsTried(nproc, slice)) continue;
    const auto with = RunGradients(ResNet18(), folder, nproc, /*sync_bn=*/true);
    ASSERT_THAT(with, IsOk()) << nproc;
    EXPECT_THAT(CheckAnswer(ResNet18(), *with, synchronised), IsOk()) << nproc;
    const auto without =
        RunGradients(ResNet18(), folder, nproc, /*sync_bn=*/false);
    ASSERT_THAT(without, IsOk()) << nproc;
    EXPECT_THAT(CheckAnswer(ResNet18(), *without, without_sync), IsOk())
        << nproc;
    if (nproc == 1) continue;
    EXPECT_THAT(CheckAnswer(ResNet18(), *without, synchronised), Not(IsOk()))
        << nproc;
    EXPECT_THAT(CheckAnswer(ResNet18(), *with, without_sync), Not(IsOk()))
        << nproc;
    EXPECT_GT(2 * TensorsThatDiffer(without_sync, synchronised),
              ResNet18().specs().size())
        << nproc;
  }
}

std::string EmptyFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// Writes the fixture's weights to a file, beside `batch`.
void WriteInputs(const TestedNetwork& tested, const std::string& folder,
                 const Safetensors& batch) {
  const std::unique_ptr<Model> model = tested.CreateModel();
  std::ranges::copy(tested.start(), model->parameters().values().begin());
  std::ranges::copy(tested.Running(1), model->buffers().floats().begin());
  ASSERT_THAT(WriteSafetensors(folder + "/weights", WeightsOf(*model)), IsOk());
  ASSERT_THAT(WriteSafetensors(folder + "/batch", batch), IsOk());
}

TEST(GradientsCommandTest, GivesWhatTheReferenceGives) {
  const Safetensors batch = RandomBatch(kSamples);
  const std::string folder = EmptyFolder("gradients_reference");
  WriteInputs(ResNet18(), folder, batch);
  Samples samples{.images = batch.tensors.at("images").Values<float>(),
                  .labels = {}};
  for (const double label : Widened<int64_t>(batch.tensors.at("labels"))) {
    samples.labels.push_back(static_cast<int32_t>(label));
  }
  const std::vector<float> running = ResNet18().Running(1);
  std::map<int, Answer> local;
  for (const auto& [nproc, deal] : kDeals) {
    if (!IsTried(nproc, {1, 2})) continue;
    const NetworkStep step = ReferenceStep({.tested = ResNet18(),
                                            .parameters = ResNet18().start(),
                                            .running = running,
                                            .samples = samples,
                                            .local_deal = deal});
    local[nproc] = AnswerOf(step.loss_sum, step.gradient, step.running[0]);
  }
  ExpectAnswers(folder, {1, 2}, local);
}

// Returns images [kSamples, c, h, w] of noise, with labels.
Safetensors NoiseFor(const TestedNetwork& tested) {
  const Samples samples = tested.Batch(9, kSamples);
  const auto& [c, h, w, classes] = tested.input();
  Safetensors batch;
  batch.tensors["images"] =
      NamedTensor::Of<float>({kSamples, c, h, w}, samples.images);
  batch.tensors["labels"] = NamedTensor::Of<int64_t>(
      {kSamples},
      std::vector<int64_t>(samples.labels.begin(), samples.labels.end()));
  return batch;
}

TEST(GradientsCommandTest, GivesWhatPyTorchGivesOnItsOwnFiles) {
  const std::string folder = EmptyFolder("gradients_torch");
  std::string cases;
  for (const TestedNetwork* const tested : {&ResNet18(), &Vit()}) {
    const std::string name = tested == &Vit() ? "vit" : "resnet";
    const auto& [c, h, w, classes] = tested->input();
    std::filesystem::create_directories(folder + "/" + name);
    WriteInputs(*tested, folder + "/" + name, NoiseFor(*tested));
    absl::StrAppend(&cases, name, " ", tested->spec(), " ", c, " ", h, " ", w,
                    " ", classes, " step 1", IsExhaustive() ? " 2 4" : " 4",
                    "\n");
  }
  std::ofstream(folder + "/cases") << cases;
  const std::string output =
      RunPythonTest("torch, numpy",
                    "-B models/reference/testdata/torch_networks.py " + folder,
                    kDeadlineSeconds);
  if (IsSkipped() || HasFailure()) return;
  RecordProperty("versions", output.substr(0, output.find('\n')));
  const auto read = [&](const TestedNetwork& tested, const std::string& path) {
    auto answer = ReadAnswer(tested, absl::StrCat(folder, path), 1);
    EXPECT_THAT(answer, IsOk());
    return *std::move(answer);
  };
  // Use the weights that PyTorch saved.
  for (const char* name : {"/resnet", "/vit"}) {
    std::filesystem::rename(absl::StrCat(folder, name, "/saved"),
                            absl::StrCat(folder, name, "/weights"));
  }
  std::map<int, Answer> local;
  for (const auto& [nproc, deal] : kDeals) {
    if (!IsTried(nproc, {1, 4})) continue;
    local[nproc] = read(ResNet18(), absl::StrCat("/resnet/answer_", nproc));
  }
  ExpectAnswers(folder + "/resnet", {4}, local);
  const Answer vit = read(Vit(), "/vit/answer_1");
  const auto got = RunGradients(Vit(), folder + "/vit", 2, /*sync_bn=*/false);
  ASSERT_THAT(got, IsOk());
  EXPECT_THAT(CheckAnswer(Vit(), *got, vit), IsOk());
}

}  // namespace
}  // namespace lockstep::conformance
