// Compares the commands with torchvision's and timm's own modules. From the
// weights that a module saved, `gradients` returns the module's gradients and
// buffers of a step, which PyTorch computes in float64. State_dicts and
// checkpoints load on the other side.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "base/slice.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kDeadlineSeconds = 200;
constexpr int64_t kSamples = 5;
constexpr NetworkInput kInput = {3, 64, 64, 10};

struct ModuleCase {
  const char* spec;
  uint32_t seed = 1;  // The seed from which PyTorch draws the module's weights.
  // The images' seed. move_biases of torch_networks.py keeps ReLU inputs away
  // from zero. These seeds keep maxima away from the next value.
  uint32_t batch_seed = 1;

  bool IsTimms() const { return absl::StartsWith(spec, "vit"); }
  // The relative error that the test must reject: of a gradient's norm, and of
  // a batch's contribution to a running statistic. For the loss it is a tenth
  // of this. ResNet-50 with torchvision's weights magnifies rounding: its
  // float32 gradients are off by 1e-4, those of the other networks by 1e-5.
  double Fault() const {
    return absl::StartsWith(spec, "resnet50") ? 1e-2 : 1e-3;
  }
  std::string Name() const {
    std::string name = absl::StrCat(spec, "Seed", seed);
    std::erase(name, '_');
    return name;
  }
};

void PrintTo(const ModuleCase& which, std::ostream* out) {
  *out << which.Name();
}

std::vector<ModuleCase> GradientCases() {
  std::vector<ModuleCase> cases = {{"resnet18", 1, 52},
                                   {"vit_tiny_patch16_224", 1, 1}};
  if (!IsExhaustive()) return cases;
  for (const ModuleCase& more :
       std::vector<ModuleCase>{{"resnet18", 2, 191},
                               {"resnet18", 3, 103},
                               {"resnet34", 1, 1},
                               {"resnet34", 2, 71},
                               {"resnet34", 3, 144},
                               {"resnet50", 1, 51},
                               {"resnet50", 2, 55},
                               {"resnet50", 3, 15},
                               {"vit_tiny_patch16_224", 2, 2},
                               {"vit_tiny_patch16_224", 3, 3}}) {
    cases.push_back(more);
  }
  return cases;
}

std::string EmptyFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/net");
  return folder;
}

// Runs torch_networks.py on one case, in folder/net, with a Python that has
// `modules`. Expects that the module is torchvision's or timm's own. Skips the
// test if no Python has the modules.
void RunPyTorch(const ModuleCase& which, int64_t classes,
                const std::string& folder, const std::string& asked,
                const std::string& modules) {
  const auto& [c, h, w, unused] = kInput;
  std::ofstream(folder + "/cases")
      << absl::StrCat("net ", which.spec, " ", c, " ", h, " ", w, " ", classes,
                      " ", asked, "\n");
  const std::string output = RunPythonTest(
      modules, "-B models/reference/testdata/torch_networks.py " + folder,
      kDeadlineSeconds);
  if (testing::Test::IsSkipped() || testing::Test::HasFailure()) return;
  testing::Test::RecordProperty("versions",
                                output.substr(0, output.find('\n')));
  EXPECT_THAT(output, HasSubstr(absl::StrCat(
                          which.spec,
                          which.IsTimms() ? ": timm's" : ": torchvision's")));
}

// Returns the batch in PyTorch's layout: images [n, c, h, w].
Safetensors BatchOf(const Samples& samples) {
  const auto& [c, h, w, classes] = kInput;
  std::vector<float> images(samples.images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const int64_t area = h * w, at = static_cast<int64_t>(i);
    const int64_t channel = at / area % c, n = at / (area * c);
    images[i] = samples.images[(n * area + at % area) * c + channel];
  }
  Safetensors batch;
  batch.tensors["images"] = NamedTensor::Of<float>({kSamples, c, h, w}, images);
  batch.tensors["labels"] = NamedTensor::Of<int64_t>(
      {kSamples},
      std::vector<int64_t>(samples.labels.begin(), samples.labels.end()));
  return batch;
}

// The results of a step, flat, in the order of TestedNetwork's specs.
template <typename T>
struct StepTensors {
  double loss = 0;
  std::vector<T> gradient, running;
};

template <typename T>
absl::Status Take(const Safetensors& file, const ParameterSpec& spec,
                  std::vector<T>& to) {
  const auto found = file.tensors.find(spec.name);
  if (found == file.tensors.end() || found->second.type != kDataTypeOf<T> ||
      found->second.shape != spec.shape) {
    return absl::DataLossError("no such tensor: " + spec.name);
  }
  to.resize(std::max<size_t>(to.size(), spec.offset + spec.size));
  std::ranges::copy(found->second.Values<T>(), to.begin() + spec.offset);
  return absl::OkStatus();
}

// Expects a counter of 1 for each batch norm. The other tensors must be those
// of the network, the loss and `others` more.
void ExpectNothingElse(const TestedNetwork& tested, const Safetensors& file,
                       size_t others) {
  const size_t batch_norms = tested.buffer_specs().size() / 2;
  size_t counters = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (tensor.type != DataType::kInt64) continue;
    ++counters;
    EXPECT_EQ(tensor.Values<int64_t>(), std::vector<int64_t>{1}) << name;
  }
  EXPECT_EQ(counters, batch_norms);
  EXPECT_EQ(file.tensors.size(),
            tested.specs().size() + 3 * batch_norms + 1 + others);
}

// Reads the results of a step. others: as in ExpectNothingElse.
template <typename T>
absl::StatusOr<StepTensors<T>> ReadStep(const TestedNetwork& tested,
                                        const std::string& path,
                                        size_t others) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors file, ReadSafetensors(path));
  StepTensors<T> step;
  for (const ParameterSpec& spec : tested.specs()) {
    LOCKSTEP_RETURN_IF_ERROR(Take(file, spec, step.gradient));
  }
  for (const BufferSpec& spec : tested.buffer_specs()) {
    LOCKSTEP_RETURN_IF_ERROR(Take(file, spec, step.running));
  }
  std::vector<T> loss;
  LOCKSTEP_RETURN_IF_ERROR(
      Take(file, {.name = "loss", .shape = {1}, .size = 1}, loss));
  step.loss = loss.at(0);
  ExpectNothingElse(tested, file, others);
  return step;
}

// PyTorch's float64 step, and how far float32 may be from it, in norm: the
// rounding of plain loops times kNetworkSpread (network_checks.h).
struct Expected {
  StepTensors<double> step;
  Rounding rounding;  // Already multiplied by kNetworkSpread.
};

void Multiply(std::vector<double>& values, double factor) {
  for (double& value : values) value *= factor;
}

// Reads the weights that PyTorch saved, and its answer. Expects the assumptions
// of the bounds: no ReLU input and no maximum is in doubt, and each bound is
// small relative to its number.
absl::StatusOr<Expected> ReadExpected(double fault, const TestedNetwork& tested,
                                      const Samples& samples,
                                      const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors saved,
                            ReadSafetensors(folder + "/net/saved"));
  const std::unique_ptr<Model> model = tested.CreateModel();
  LOCKSTEP_RETURN_IF_ERROR(LoadTensors(saved.tensors, "saved",
                                       model->parameters(), model->buffers()));
  const StepInput in = {.tested = tested,
                        .parameters = model->parameters().values(),
                        .running = model->buffers().floats(),
                        .samples = samples};
  const double clearance = Clearance(in);
  EXPECT_GT(clearance, kNetworkClearance);
  testing::Test::RecordProperty("clearance", absl::StrCat(clearance));
  Expected expected;
  LOCKSTEP_ASSIGN_OR_RETURN(
      expected.step, ReadStep<double>(tested, folder + "/net/answer_1", 2));
  expected.rounding = MeasureRounding(in);
  expected.rounding.loss_sum *= kNetworkSpread;
  Multiply(expected.rounding.gradients, kNetworkSpread);
  Multiply(expected.rounding.running[0], kNetworkSpread);
  const std::vector<double> added =
      TensorDistances(tested.buffer_specs(), in.running, expected.step.running);
  for (size_t i = 0; i < added.size(); ++i) {
    EXPECT_LT(expected.rounding.running[0][i], fault * added[i])
        << tested.buffer_specs()[i].name;
  }
  EXPECT_LT(expected.rounding.loss_sum,
            0.1 * fault * kSamples * expected.step.loss);
  return expected;
}

// Checks that each tensor is within its bound. Error: kDataLoss with the first
// that is not. furthest: raised to the largest error, in bounds.
absl::Status CheckTensors(std::span<const ParameterSpec> specs,
                          std::span<const float> got,
                          std::span<const double> want,
                          const std::vector<double>& bounds, double& furthest) {
  const std::vector<double> errors = TensorDistances(specs, got, want);
  for (size_t i = 0; i < errors.size(); ++i) {
    furthest = std::max(furthest, ErrorOverAllowed(errors[i], bounds[i]));
    if (!(errors[i] <= bounds[i])) {
      return absl::DataLossError(absl::StrCat(specs[i].name, " is ", errors[i],
                                              " away, may be ", bounds[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const TestedNetwork& tested,
                       const StepTensors<float>& got, const Expected& want,
                       double& furthest) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(tested.specs(), got.gradient,
                                        want.step.gradient,
                                        want.rounding.gradients, furthest));
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(tested.buffer_specs(), got.running,
                                        want.step.running,
                                        want.rounding.running[0], furthest));
  // The file holds the mean, in float32.
  const double bound =
      want.rounding.loss_sum / kSamples + want.step.loss * 0x1p-24;
  const double error = std::abs(got.loss - want.step.loss);
  furthest = std::max(furthest, ErrorOverAllowed(error, bound));
  if (error <= bound) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("loss is ", error, " away, may be ", bound));
}

// Runs the command on the files in `folder`.
absl::StatusOr<StepTensors<float>> RunGradients(const TestedNetwork& tested,
                                                const std::string& folder,
                                                int nproc, bool sync_bn) {
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("env BUILD_WORKING_DIRECTORY=", folder,
                   "/net models/train/gradients --model=", tested.spec(),
                   " --weights=saved --batch=batch --out=out --nproc=", nproc,
                   sync_bn ? " --sync_bn" : ""),
      kDeadlineSeconds);
  if (outcome.exit_status != 0) return absl::InternalError(outcome.output);
  return ReadStep<float>(tested, folder + "/net/out", 0);
}

// Expects that every gradient tensor is rejected if it is wrong by `fault`.
void ExpectFaultsAreRejected(double fault, const TestedNetwork& tested,
                             const StepTensors<float>& got,
                             const Expected& want) {
  StepTensors<float> wrong = got;
  for (float& value : wrong.gradient) value *= 1 + static_cast<float>(fault);
  const std::vector<double> errors =
      TensorDistances(tested.specs(), wrong.gradient, want.step.gradient);
  for (size_t i = 0; i < errors.size(); ++i) {
    EXPECT_GT(errors[i], want.rounding.gradients[i]) << tested.specs()[i].name;
  }
}

std::string NameOf(const testing::TestParamInfo<ModuleCase>& info) {
  return info.param.Name();
}

class ModuleGradientsTest : public testing::TestWithParam<ModuleCase> {};

// Batch norm is synchronised, so that the ranks have the module's statistics.
TEST_P(ModuleGradientsTest, AreWhatTheCommandGives) {
  const ModuleCase& which = GetParam();
  const TestedNetwork tested(which.spec, kInput, {});
  const bool has_batch_norm = !tested.buffer_specs().empty();
  const std::string folder = EmptyFolder(which.Name());
  const Samples samples = tested.Batch(which.batch_seed, kSamples);
  ASSERT_THAT(WriteSafetensors(folder + "/net/batch", BatchOf(samples)),
              IsOk());
  RunPyTorch(which, kInput.classes, folder,
             absl::StrCat(has_batch_norm ? "clear:" : "own:", which.seed, " 1"),
             which.IsTimms() ? "timm, torch" : "torchvision, torch");
  if (IsSkipped() || HasFailure()) return;
  const auto want = ReadExpected(which.Fault(), tested, samples, folder);
  ASSERT_THAT(want, IsOk());
  for (const int nproc : {1, 3}) {
    const bool sync_bn = has_batch_norm && nproc > 1;
    const auto got = RunGradients(tested, folder, nproc, sync_bn);
    ASSERT_THAT(got, IsOk()) << nproc;
    double furthest = 0;
    EXPECT_THAT(CheckStep(tested, *got, *want, furthest), IsOk()) << nproc;
    RecordProperty(absl::StrCat("furthest_on_", nproc), absl::StrCat(furthest));
    ExpectFaultsAreRejected(which.Fault(), tested, *got, *want);
    if (!sync_bn) continue;
    const auto local = RunGradients(tested, folder, nproc, /*sync_bn=*/false);
    ASSERT_THAT(local, IsOk());
    EXPECT_THAT(CheckStep(tested, *local, *want, furthest), Not(IsOk()));
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, ModuleGradientsTest,
                         testing::ValuesIn(GradientCases()), NameOf);

std::vector<ModuleCase> StateDictCases() {
  std::vector<ModuleCase> cases = {{"resnet18"}, {"vit_tiny_patch16_224"}};
  if (!IsExhaustive()) return cases;
  cases.push_back({"resnet34"});
  cases.push_back({"resnet50"});
  return cases;
}

// Trains one step from the file `weights` of `folder`. This learning rate is so
// small that no float32 value changes, except zero.
CommandOutcome TrainOneStep(const ModuleCase& which, int64_t classes,
                            const std::string& folder,
                            const std::string& weights) {
  return RunCommand(
      absl::StrCat("models/train/train --model=", which.spec,
                   " --dataset=synthetic --image_size=64 --channels=3",
                   " --num_classes=", classes, " --train_samples=4",
                   " --test_samples=1 --batch_size=4 --epochs=1 --lr=1e-40",
                   " --weights=", folder, "/net/", weights,
                   " --output_dir=", folder, "/trained"),
      kDeadlineSeconds);
}

class StateDictTest : public testing::TestWithParam<ModuleCase> {};

// The module's state_dict loads in `train`, with no tensor missing or left
// over. The checkpoint of `train` loads in the module likewise
// (load_state_dict, strict), with the module's values.
TEST_P(StateDictTest, LoadsHereAndComesBack) {
  constexpr int64_t kClasses = 1000;  // The modules' default.
  const char* const modules = "safetensors.torch, timm, torchvision";
  const ModuleCase& which = GetParam();
  const std::string folder = EmptyFolder(which.Name());
  RunPyTorch(which, kClasses, folder, "own:1", modules);
  if (IsSkipped() || HasFailure()) return;
  const CommandOutcome outcome = TrainOneStep(which, kClasses, folder, "saved");
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  std::filesystem::rename(folder + "/trained/weights.safetensors",
                          folder + "/net/checkpoint");
  RunPyTorch(which, kClasses, folder, "back:1", modules);
  // The controls: a tensor is missing, another is left over.
  const auto saved = ReadSafetensors(folder + "/net/saved");
  ASSERT_THAT(saved, IsOk());
  Safetensors other = *saved;
  auto tensor = other.tensors.extract(other.tensors.begin());
  const std::string name = tensor.key();
  ASSERT_THAT(WriteSafetensors(folder + "/net/less", other), IsOk());
  tensor.key() = "other";
  other.tensors = saved->tensors;
  other.tensors.insert(std::move(tensor));
  ASSERT_THAT(WriteSafetensors(folder + "/net/more", other), IsOk());
  const CommandOutcome less = TrainOneStep(which, kClasses, folder, "less");
  EXPECT_EQ(less.exit_status, 1);
  EXPECT_THAT(less.output, AllOf(HasSubstr("/net/less"), HasSubstr(name)));
  const CommandOutcome more = TrainOneStep(which, kClasses, folder, "more");
  EXPECT_EQ(more.exit_status, 1);
  EXPECT_THAT(more.output, AllOf(HasSubstr("/net/more"), HasSubstr("other")));
}

INSTANTIATE_TEST_SUITE_P(Modules, StateDictTest,
                         testing::ValuesIn(StateDictCases()), NameOf);

}  // namespace
}  // namespace lockstep::conformance
