// Compares the float64 reference of every network with PyTorch and with the
// slopes of its own loss, and its error bounds with float32.
#include "models/reference/network_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "base/slice.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/bounded.h"
#include "models/reference/lenet_reference.h"
#include "models/reference/network_inputs.h"

namespace lockstep {
namespace {

// 1 + 2^-24 rounds to 1, so n such additions lose n * 2^-24 together. A float32
// sum cannot lose more. The bound must be larger, but not by much.
TEST(BoundedTest, WorstCaseSumIsWithinTheBoundAndCloseToIt) {
  for (const int64_t n : {1, 2, 3, 10, 500, 4096}) {
    std::vector<float> terms(n + 1, 0x1p-24f);
    terms[0] = 1;
    float sum = 0;
    for (const float term : terms) sum += term;
    BoundedSum exact;
    for (const float term : terms) exact += BoundedSum(term);
    const BoundedNumber got = exact.Finish();
    const double error = std::abs(sum - got.value);
    EXPECT_EQ(error, static_cast<double>(n) * 0x1p-24);
    EXPECT_LE(error, got.bound);
    EXPECT_LE(got.bound, 2.01 * error);
  }
}

// The factors' own bounds e and f give the bound |a| f + e |b| + e f.
TEST(BoundedTest, FactorsPassTheirBoundsOn) {
  const BoundedNumber got =
      (BoundedSum({2, 0.5}) * BoundedSum({-3, 0.25})).Finish();
  EXPECT_EQ(got.value, -6);
  EXPECT_GE(got.bound, 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25);
  EXPECT_NEAR(got.bound, 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25, 1e-5);
}

TEST(BoundedTest, ZeroTermsAreExact) {
  BoundedSum zeros = BoundedSum(0.0) * BoundedSum({3, 1});
  zeros += BoundedSum();
  EXPECT_EQ(zeros.Finish().value, 0);
  EXPECT_EQ(zeros.Finish().bound, 0);
  EXPECT_EQ(Gamma(0), 0);
}

TEST(BoundedTest, LargestErrorIsInBounds) {
  Bounded want(3);
  want.value = {1, 2, 3};
  want.bound = {0.5, 0.25, 0};
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 3}), 0);
  EXPECT_EQ(LargestError(want, std::vector<float>{1.25, 1.75, 3}), 1);
  EXPECT_EQ(LargestError(want, std::vector<float>{0, 2, 3}), 2);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 4}), infinity);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LargestError(want, std::vector<float>{nan, 2, 3}), infinity);
}

TEST(BoundedTest, NanStaysNan) {
  const BoundedSum nan(std::nan(""));
  EXPECT_TRUE(std::isnan((nan * nan).Finish().value));
  EXPECT_TRUE(std::isnan((nan * nan).Finish().bound));
}

// Tests of LeNet's bounds on images of blobs.

struct LeNetProblem {
  LeNetProblem(std::vector<float> values, int64_t samples)
      : parameters(std::move(values)),
        images(samples * kLeNetPixels),
        labels(samples) {
    const MemoryDataset data = BlobDataset(samples);
    std::vector<int64_t> all(samples);
    std::iota(all.begin(), all.end(), 0);
    data.GatherImages(all, images);
    data.GatherLabels(all, labels);
  }
  BoundedStep Reference() const {
    return LeNetReference(parameters, images, labels, 8);
  }

  std::vector<float> parameters, images;
  std::vector<int32_t> labels;
};

// The order of samples changes in the second turn. ReorderedLeNetTest of
// conformance/training/checks_test.cc tests every order of sums.
TEST(LeNetReferenceTest, BoundsHoldInFloat32) {
  const Network lenet = *CreateNetwork("lenet");
  for (const auto& parameters : {HeLeNet(1), WellConditionedLeNet(1)}) {
    LeNetProblem problem(parameters, 4);
    const BoundedStep want = problem.Reference();
    for (int turn = 0; turn < 2; ++turn) {
      const Batch batch = {.images = problem.images, .labels = problem.labels};
      const NetworkReference<float> got(lenet, parameters, {}, batch, true);
      EXPECT_NEAR(got.loss_sum, want.loss_sum, want.loss_sum_bound);
      const double largest = LargestError(want.gradient, got.Gradient(0.25));
      EXPECT_LE(largest, 1);
      EXPECT_GT(largest, 0);  // float32 does round.
      std::rotate(problem.images.begin(), problem.images.begin() + kLeNetPixels,
                  problem.images.end());
      std::rotate(problem.labels.begin(), problem.labels.begin() + 1,
                  problem.labels.end());
    }
  }
}

TEST(LeNetReferenceTest, BoundsAreSmallAgainstWellConditionedGradients) {
  const BoundedStep r = LeNetProblem(WellConditionedLeNet(1), 12).Reference();
  int64_t at = 0;
  for (const int64_t size : {180, 20, 25000, 50, 102400, 128, 1280, 10}) {
    const double value = Norm(std::span(r.gradient.value).subspan(at, size));
    const double bound = Norm(std::span(r.gradient.bound).subspan(at, size));
    EXPECT_GT(value, 0.01) << "tensor at " << at;
    EXPECT_LT(bound, 0.01 * value) << "tensor at " << at;
    at += size;
  }
  EXPECT_EQ(at, kLeNetParameters);
}

// Tests of every network.

enum class Ask { kFirst, kStep };  // Asked of torch_networks.py.

// The modules that a case is compared with: the chapter's and a copy of timm's,
// both in torch_networks.py; torchvision's; timm's own.
enum class Source { kScript, kTorchvision, kTimm };

struct NetworkCase {
  const char* spec;
  NetworkInput input;
  Ask ask = Ask::kStep;
  bool exhaustive = false;
  // The digests (DigestsOf) of PyTorch 1.13's numbers for a step.
  // EqualsPyTorchTest compares them with the installed PyTorch's.
  std::vector<double> digests = {};

  bool IsOf(Source source) const {
    const std::string text = spec;
    const bool torchvision = absl::StartsWith(text, "resnet") &&
                             !absl::StartsWith(text, "resnet18_d2l");
    if (source == Source::kTimm) {  // timm draws its own masks.
      return absl::StartsWith(text, "vit") && !absl::StrContains(text, "drop");
    }
    return torchvision == (source == Source::kTorchvision);
  }
  Network Describe() const {
    auto network = CreateNetwork(spec, input);
    EXPECT_THAT(network, IsOk());
    return *std::move(network);
  }
};

const NetworkCase kCases[] = {
    {.spec = "lenet",
     .input = {1, 28, 28, 10},
     .digests = {-0x1.c64da4005ab98p-6, -0x1.e2311ccae0f11p-4,
                 0x1.140eb947388f4p+0, 0x0p+0}},
    {.spec = "lenet_bn",
     .input = {3, 20, 24, 7},
     .digests = {0x1.5cd9e2e350664p-1, 0x1.74ffa329b53e6p-2,
                 -0x1.33a6420887cb7p+2, -0x1.2c47a2526b8fp+2}},
    {.spec = "resnet18_d2l:width=8",
     .input = {3, 10, 13, 7},
     .digests = {0x1.1aa88da20ec8ap+0, 0x1.44b2ce9b00d84p-1,
                 0x1.0e2d3e84a639dp+2, -0x1.f391ed0668e07p+4}},
    {.spec = "resnet18:width=8",
     .input = {3, 40, 33, 7},
     .digests = {0x1.bcf6eab5bfd95p+2, 0x1.9a64384508c09p+2,
                 -0x1.88a101f93e455p+4, -0x1.08f68d9afaa7ap+4}},
    {.spec = "resnet34:width=8",
     .input = {1, 33, 33, 5},
     .digests = {-0x1.f6c6615b6a91cp+1, -0x1.149f0ed952f29p+2,
                 0x1.3e3f88d4dd087p+3, -0x1.6027120542cc6p+7}},
    {.spec = "resnet50:width=8",
     .input = {3, 33, 40, 7},
     .digests = {0x1.963e4d12c065p+3, 0x1.154bc4ec23f57p+2,
                 -0x1.52852952d404ap+1, -0x1.f6cd5271de83p+5}},
    {.spec = "vit",
     .input = {1, 28, 28, 10},
     .digests = {0x1.2e557955ff901p-1, -0x1.12d232c805a63p-3,
                 -0x1.30651e454dc86p+0, 0x0p+0}},
    {.spec = "vit:patch=8,width=48,depth=3,heads=3,dropout=0.25,"
             "attention_dropout=0.25,drop_path=0.25",
     .input = {3, 32, 24, 7},
     .digests = {0x1.197654d2fc62fp-1, -0x1.46e16118f8dc4p+0,
                 -0x1.cbf2e4e0f57aap-1, 0x0p+0}},
    {.spec = "mlp:width=24,depth=3",
     .input = {3, 10, 13, 7},
     .digests = {0x1.02984354030ffp-1, 0x1.a26e7645aee18p-4,
                 0x1.920a137c5b15ep-1, 0x0p+0}},
    {.spec = "lenet", .input = {1, 28, 28, 10}, .ask = Ask::kFirst},
    {.spec = "lenet_bn", .input = {1, 28, 28, 10}, .ask = Ask::kFirst},
    {.spec = "mlp", .input = {1, 28, 28, 10}, .ask = Ask::kFirst},
    {.spec = "resnet18_d2l", .input = {1, 28, 28, 10}, .ask = Ask::kFirst},
    {.spec = "resnet18", .input = {3, 64, 64, 1000}, .ask = Ask::kFirst},
    {.spec = "resnet34", .input = {3, 64, 64, 10}, .ask = Ask::kFirst},
    {.spec = "resnet50", .input = {3, 64, 64, 10}, .ask = Ask::kFirst},
    {.spec = "vit_tiny_patch16_224",
     .input = {3, 224, 224, 1000},
     .ask = Ask::kFirst},
    {.spec = "resnet18_d2l", .input = {1, 28, 28, 10}, .exhaustive = true},
    {.spec = "resnet18", .input = {3, 96, 64, 100}, .exhaustive = true},
    {.spec = "resnet34", .input = {3, 64, 64, 100}, .exhaustive = true},
    {.spec = "resnet50", .input = {3, 64, 64, 100}, .exhaustive = true},
    {.spec = "vit_tiny_patch16_224",
     .input = {3, 64, 48, 10},
     .exhaustive = true},
    {.spec = "vit_small_patch16_224",
     .input = {3, 32, 32, 10},
     .exhaustive = true},
    {.spec = "vit_small_patch16_224",
     .input = {3, 224, 224, 10},
     .ask = Ask::kFirst,
     .exhaustive = true},
    {.spec = "vit_base_patch16_224",
     .input = {3, 224, 224, 10},
     .ask = Ask::kFirst,
     .exhaustive = true},
};

constexpr uint64_t kSeed = 3;  // As in the script.
constexpr int64_t kSamples = 6;

// The mask of the script.
bool Keep(int layer, double, int64_t sample, int64_t element) {
  return (layer * 31 + sample * 21 + element * 17) % 64 >= 16;
}

// The inputs of a step. If `mixed`, each sample has two labels.
struct Problem {
  explicit Problem(const Network& described, bool mixed = true)
      : network(described),
        parameters(RandomParameters(network, 1)),
        running(RandomRunning(network, 1)),
        samples(RandomBatchOf(network, 1, kSamples)) {
    if (!mixed) return;
    for (int64_t i = 0; i < kSamples; ++i) {
      others.push_back(static_cast<int32_t>((i * 5 + 2) % network.classes()));
      shares.push_back(1 - static_cast<float>(i) / 16);
    }
  }

  Batch batch() const {
    Batch batch = samples.batch();
    batch.other_labels = others;
    batch.shares = shares;
    return batch;
  }

  const Network& network;
  std::vector<float> parameters, running;
  RandomSamples samples;
  std::vector<int32_t> others;
  std::vector<float> shares;
};

// The results of a step by tensor: the outputs before the step in evaluation,
// and the step's outputs, loss, gradients and running statistics.
struct Answer {
  double loss = 0;
  std::map<std::string, std::vector<double>> tensors;
};

template <typename T>
Answer Compute(const Problem& problem, const KeepMask& keep = Keep) {
  const Network& network = problem.network;
  const std::vector<T> parameters(problem.parameters.begin(),
                                  problem.parameters.end());
  const std::vector<T> running(problem.running.begin(), problem.running.end());
  const NetworkReference<T> evaluation(network, parameters, running,
                                       problem.batch(), /*training=*/false);
  const NetworkReference<T> training(network, parameters, running,
                                     problem.batch(), /*training=*/true, keep);
  EXPECT_EQ(evaluation.running, running);
  Answer answer;
  answer.loss = training.loss_sum / static_cast<double>(kSamples);
  const auto take = [&](const std::string& name, std::span<const T> values) {
    answer.tensors[name] = {values.begin(), values.end()};
  };
  take("evaluation", evaluation.outputs);
  take("outputs", training.outputs);
  const std::vector<T> gradient = training.Gradient(1.0 / kSamples);
  const Parameters described = CreateParameters(network);
  for (const ParameterSpec& spec : described.specs()) {
    take(spec.name, std::span(gradient).subspan(spec.offset, spec.size));
  }
  const Buffers buffers = CreateBuffers(network);
  for (const BufferSpec& spec : buffers.specs()) {
    if (spec.type != DataType::kFloat32) continue;
    take(spec.name,
         std::span(training.running).subspan(spec.offset, spec.size));
  }
  return answer;
}

double DistanceOf(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Tolerances. Two float64 computations differ by rounding in the orders of
// their sums, which is 2^-29 of the rounding in float32. The reference in
// float32, in the same plain loops, therefore shows for each tensor how far
// float64 may be off, in norm. The reference's own error in float64 has that
// size, and PyTorch's sums, in blocks, have no larger error. kSpread allows for
// chance: a tensor of one element would fail only if float32 came 16 times
// closer than usual. Values that are zero up to rounding, such as the gradient
// of a bias before a batch norm, need no other rule.
constexpr double kSpread = 16;
constexpr double kOfFloat64 = 0x1p-29;

// Returns the first tensor of `want` that `got` differs from by more than the
// tolerance, or "" for none. furthest: raised to the largest error, in
// tolerances.
std::string FirstDifference(const Answer& got, const Answer& want,
                            const Answer& rounded, double& furthest) {
  const auto differs = [&](double distance, double tolerance) {
    furthest = std::max(furthest, ErrorOverAllowed(distance, tolerance));
    return !(distance <= tolerance);
  };
  for (const auto& [name, values] : want.tensors) {
    const auto found = got.tensors.find(name);
    if (found == got.tensors.end() || found->second.size() != values.size()) {
      return "no " + name;
    }
    const double tolerance =
        kSpread * kOfFloat64 * DistanceOf(rounded.tensors.at(name), values);
    const double distance = DistanceOf(found->second, values);
    if (differs(distance, tolerance)) {
      return absl::StrFormat("%s is %.3g away, may be %.3g", name, distance,
                             tolerance);
    }
  }
  // A loss changes by at most twice the largest error of its outputs.
  const double tolerance =
      2 * kSpread * kOfFloat64 *
      (DistanceOf(rounded.tensors.at("outputs"), want.tensors.at("outputs")) +
       std::abs(want.loss) * 0x1p-24);
  if (differs(std::abs(got.loss - want.loss), tolerance)) {
    return absl::StrFormat("the loss is %.17g, must be %.17g +- %.3g", got.loss,
                           want.loss, tolerance);
  }
  return "";
}

// Returns one number for each kind of tensor: outputs in evaluation, outputs in
// training, gradients, running statistics. The number is the sum of term(name,
// i) over the kind's tensors in order, with signs that look random.
template <typename Term>
std::vector<double> Digests(const Network& network, const Answer& answer,
                            bool with_signs, Term term) {
  std::vector<double> digests;
  uint32_t random = 1;
  const auto add = [&](const std::string& name) {
    const size_t size = answer.tensors.at(name).size();
    for (size_t i = 0; i < size; ++i) {
      random = random * 1664525u + 1013904223u;
      const bool up = !with_signs || (random >> 31) != 0;
      digests.back() += up ? term(name, i) : -term(name, i);
    }
  };
  for (const char* name : {"evaluation", "outputs"}) {
    digests.push_back(0);
    add(name);
  }
  digests.push_back(0);
  for (const auto& parameter : network.parameters()) add(parameter.name);
  digests.push_back(0);
  for (const auto& buffer : network.buffers()) {
    if (!buffer.counter) add(buffer.name);
  }
  return digests;
}

std::vector<double> DigestsOf(const Network& network, const Answer& answer) {
  return Digests(network, answer, /*with_signs=*/true,
                 [&](const std::string& name, size_t i) {
                   return answer.tensors.at(name)[i];
                 });
}

// Expects PyTorch's digests within the tolerance of FirstDifference.
void ExpectDigests(const NetworkCase& which, const Network& network,
                   const Answer& answer, const Answer& rounded) {
  const std::vector<double> got = DigestsOf(network, answer);
  const std::vector<double> errors =
      Digests(network, answer, /*with_signs=*/false,
              [&](const std::string& name, size_t i) {
                return std::abs(rounded.tensors.at(name)[i] -
                                answer.tensors.at(name)[i]);
              });
  std::string hex;
  for (const double digest : got) absl::StrAppendFormat(&hex, "%a, ", digest);
  ASSERT_EQ(which.digests.size(), got.size()) << which.spec << ": " << hex;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - which.digests[i]),
              kSpread * kOfFloat64 * errors[i])
        << which.spec << " digest " << i << " of " << hex;
  }
}

// Returns the cases for `ask`. A run that is not exhaustive leaves out the
// exhaustive cases.
std::vector<NetworkCase> CasesOf(Ask ask) {
  std::vector<NetworkCase> cases;
  for (const NetworkCase& which : kCases) {
    if (which.ask == ask && (!which.exhaustive || IsExhaustive())) {
      cases.push_back(which);
    }
  }
  return cases;
}

// Runs without PyTorch.
TEST(NetworkReferenceTest, HasTheNumbersThatPyTorchGave) {
  for (const NetworkCase& which : CasesOf(Ask::kStep)) {
    if (which.exhaustive) continue;
    const Network network = which.Describe();
    const Problem problem(network);
    ExpectDigests(which, network, Compute<double>(problem),
                  Compute<float>(problem));
  }
}

// Returns the tensors' names and shapes, one line each.
template <typename Tensors>
std::string Order(const Tensors& tensors) {
  std::string text;
  for (const TensorDescription& tensor : tensors) {
    absl::StrAppend(&text, tensor.name, " ", absl::StrJoin(tensor.shape, "x"),
                    "\n");
  }
  return text + "--\n";
}

std::string ReadFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

// Writes the weights and the batch in PyTorch's layout: [n, c, h, w].
void WriteInputs(const std::string& folder, const Problem& problem) {
  Parameters parameters = CreateParameters(problem.network);
  Buffers buffers = CreateBuffers(problem.network);
  std::ranges::copy(problem.parameters, parameters.values().begin());
  std::ranges::copy(problem.running, buffers.floats().begin());
  Safetensors weights{.metadata = {}, .tensors = ValueTensors(parameters)};
  weights.tensors.merge(BufferTensors(buffers));
  ASSERT_THAT(WriteSafetensors(folder + "/weights", weights), IsOk());
  const Shape& shape = problem.network.input_shape();
  std::vector<float> images(problem.samples.images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const int64_t area = shape.h * shape.w, at = static_cast<int64_t>(i);
    const int64_t pixel = at % area, c = at / area % shape.c;
    images[i] = problem.samples
                    .images[(at / shape.size() * area + pixel) * shape.c + c];
  }
  Safetensors batch;
  batch.tensors["images"] =
      NamedTensor::Of<float>({kSamples, shape.c, shape.h, shape.w}, images);
  batch.tensors["labels"] =
      NamedTensor::Of<int32_t>({kSamples}, problem.samples.labels);
  batch.tensors["others"] =
      NamedTensor::Of<int32_t>({kSamples}, problem.others);
  batch.tensors["shares"] = NamedTensor::Of<float>({kSamples}, problem.shares);
  ASSERT_THAT(WriteSafetensors(folder + "/batch", batch), IsOk());
}

Answer ReadAnswer(const std::string& path) {
  const auto file = ReadSafetensors(path);
  EXPECT_THAT(file, IsOk());
  Answer answer;
  for (const auto& [name, tensor] : file->tensors) {
    if (tensor.type == DataType::kInt64) {  // A counter.
      EXPECT_EQ(tensor.Values<int64_t>(), std::vector<int64_t>{1}) << name;
    } else {
      answer.tensors[name] = tensor.Values<double>();
    }
  }
  answer.loss = answer.tensors.at("loss").at(0);
  answer.tensors.erase("loss");
  return answer;
}

// Returns the tolerance of a first value against PyTorch: the bound of
// torch_generator.h for the parameter's last draw, and the rounding of
// products.
double FirstValueTolerance(const Draw* draw, double value) {
  constexpr double kRoundoff = 0x1p-24;
  if (draw == nullptr) return 0;
  switch (draw->kind) {
    case Draw::Kind::kNormal:
      return draw->scale * (0x1p-19 + 6 * kRoundoff);
    case Draw::Kind::kTruncatedNormal: {
      const double x = value / draw->scale / std::numbers::sqrt2;
      return draw->scale * 4 * kRoundoff * (std::exp(x * x) + std::abs(x));
    }
    default:
      return 0;
  }
}

void ExpectFirstValues(const NetworkCase& which, const Network& network,
                       const std::string& path) {
  const auto file = ReadSafetensors(path);
  ASSERT_THAT(file, IsOk());
  const Parameters got = CreateParameters(network, kSeed);
  std::map<int, const Draw*> last_draws;
  for (const Draw& draw : network.draws()) last_draws[draw.parameter] = &draw;
  for (int i = 0; i < got.count(); ++i) {
    const std::string& name = got.specs()[i].name;
    const std::vector<float> want = file->tensors.at(name).Values<float>();
    ASSERT_EQ(std::ssize(want), got.specs()[i].size) << name;
    const Draw* const draw = last_draws[i];
    double worst = 0;
    for (size_t at = 0; at < want.size(); ++at) {
      const double error = std::abs(double{got.value(i)[at]} - want[at]);
      worst = std::max(
          worst, ErrorOverAllowed(error, FirstValueTolerance(draw, want[at])));
    }
    EXPECT_LE(worst, 1) << which.spec << ": " << name;
  }
  for (const auto& [name, tensor] : BufferTensors(CreateBuffers(network))) {
    EXPECT_TRUE(file->tensors.at(name) == tensor) << name;
  }
}

void ExpectStep(const NetworkCase& which, const Problem& problem,
                const std::string& path) {
  const Network& network = problem.network;
  const Answer want = ReadAnswer(path);
  const Answer got = Compute<double>(problem);
  const Answer rounded = Compute<float>(problem);
  ASSERT_EQ(got.tensors.size(), want.tensors.size()) << which.spec;
  double furthest = 0;
  EXPECT_EQ(FirstDifference(want, got, rounded, furthest), "") << which.spec;
  testing::Test::RecordProperty(absl::StrCat("furthest of ", which.spec),
                                absl::StrCat(furthest));
  if (!which.exhaustive) ExpectDigests(which, network, want, rounded);
}

// Writes the files that torch_networks.py needs for the cases of `source`.
// Returns the cases by the names of their folders.
std::map<std::string, NetworkCase> WriteCases(Source source,
                                              const std::string& folder) {
  std::filesystem::remove_all(folder);
  std::map<std::string, NetworkCase> cases;
  std::string lines;
  for (const Ask ask : {Ask::kFirst, Ask::kStep}) {
    for (const NetworkCase& which : CasesOf(ask)) {
      if (!which.IsOf(source)) continue;
      const std::string name = absl::StrCat("case_", cases.size());
      const auto& [c, h, w, classes] = which.input;
      std::filesystem::create_directories(absl::StrCat(folder, "/", name));
      absl::StrAppend(&lines, name, " ", which.spec, " ", c, " ", h, " ", w,
                      " ", classes, ask == Ask::kStep ? " step 1" : " first",
                      "\n");
      if (ask == Ask::kStep) {
        const Network network = which.Describe();
        WriteInputs(absl::StrCat(folder, "/", name), Problem(network));
      }
      cases[name] = which;
    }
  }
  std::ofstream(folder + "/cases") << lines;
  return cases;
}

// Runs PyTorch with these Python modules, and compares. whose: the script's
// text about the module of every case; empty if the text may differ.
void ExpectPyTorchs(Source source, const std::string& modules,
                    const std::string& whose) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/torch");
  const std::map<std::string, NetworkCase> cases = WriteCases(source, folder);
  const std::string output = RunPythonTest(
      modules,
      absl::StrCat("-B models/reference/testdata/torch_networks.py ", folder,
                   source == Source::kTimm ? "" : " --no_timm"),
      /*deadline_seconds=*/IsExhaustive() ? 500 : 100);
  if (testing::Test::IsSkipped() || testing::Test::HasFailure()) return;
  testing::Test::RecordProperty("versions",
                                output.substr(0, output.find('\n')));
  for (const auto& [name, which] : cases) {
    const std::string line = absl::StrCat(name, " ", which.spec, ": ", whose);
    EXPECT_TRUE(absl::StrContains(output, line)) << line << "\n" << output;
    const std::string own = absl::StrCat(folder, "/", name);
    const Network network = which.Describe();
    EXPECT_EQ(ReadFile(own + "/order"),
              Order(network.parameters()) + Order(network.buffers()))
        << which.spec;
    if (which.ask == Ask::kFirst) {
      ExpectFirstValues(which, network, own + "/first");
    } else {
      ExpectStep(which, Problem(network), own + "/answer_1");
    }
  }
}

TEST(EqualsPyTorchTest, OfTheChapterAndTheCopyOfTimm) {
  ExpectPyTorchs(Source::kScript, "torch, numpy", "");
}

TEST(EqualsPyTorchTest, OfTorchvision) {
  ExpectPyTorchs(Source::kTorchvision, "torch, torchvision", "torchvision's");
}

TEST(EqualsPyTorchTest, OfTimm) {
  ExpectPyTorchs(Source::kTimm, "timm, torch, numpy", "timm's");
}

// The controls: the comparison detects another number of heads, other masks,
// labels that are not mixed, and other running statistics in evaluation.
TEST(NetworkReferenceTest, ComparisonRejectsSmallFaults) {
  const NetworkCase& vit = kCases[7];
  const Network network = vit.Describe();
  const Problem problem(network);
  const Answer want = Compute<double>(problem);
  const Answer rounded = Compute<float>(problem);
  double furthest = 0;
  const auto difference = [&](const Answer& got) {
    return FirstDifference(got, want, rounded, furthest);
  };
  EXPECT_EQ(difference(want), "");
  const Network heads =
      NetworkCase{.spec =
                      "vit:patch=8,width=48,depth=3,heads=4,dropout=0.25,"
                      "attention_dropout=0.25,drop_path=0.25",
                  .input = vit.input}
          .Describe();
  EXPECT_NE(difference(Compute<double>(Problem(heads))), "");
  EXPECT_NE(difference(Compute<double>(Problem(network, /*mixed=*/false))), "");
  for (int other = 0; other < 13; ++other) {  // Every random layer.
    const KeepMask keep = [other](int layer, double rate, int64_t sample,
                                  int64_t element) {
      return Keep(layer, rate, sample + (layer == other ? 1 : 0), element);
    };
    // The first block's drop path has a rate of zero.
    const bool drops = other != 3 && other != 6;
    EXPECT_EQ(difference(Compute<double>(problem, keep)).empty(), !drops)
        << other;
  }
  const Network norms = kCases[2].Describe();
  Problem changed(norms);
  const Answer before = Compute<double>(changed);
  const Answer before_rounded = Compute<float>(changed);
  changed.running[0] += 1e-6f;
  EXPECT_NE(FirstDifference(Compute<double>(changed), before, before_rounded,
                            furthest),
            "");
}

// Returns a direction of norm 1 in one tensor. Half of it is along the
// gradient, so that the slope is not small. The other half is random, so that
// every element counts.
std::vector<double> Direction(std::span<const double> gradient,
                              std::mt19937& random) {
  std::vector<double> direction;
  const double norm = Norm(gradient);
  const double step = 1 / std::sqrt(2.0 * static_cast<double>(gradient.size()));
  for (const double g : gradient) {
    direction.push_back(g / norm / std::sqrt(2.0) +
                        (random() % 2 == 0 ? step : -step));
  }
  return direction;
}

// Two images of one pixel, and a linear layer with two outputs.
struct OneLayer {
  OneLayer() { network.Linear("fc", network.input(), {.out = 2}); }
  NetworkReference<double> Pass(const StoredActivations& stored) const {
    return NetworkReference<double>(
        network, parameters, {}, {.images = images, .labels = labels},
        /*training=*/true, nullptr, 1, nullptr, nullptr, stored);
  }

  Network network{"one", {.n = 1, .c = 1, .h = 1, .w = 1}};
  std::vector<double> parameters = {1.01, -0.37, 0.003, 0.7};
  std::vector<float> images = {0.3f, 0.9f};
  std::vector<int32_t> labels = {1, 0};
};

// Outputs round the sum of products of rounded numbers. Gradients of a linear
// layer's parameters are not rounded, but those of its outputs are.
TEST(StoredActivationsTest, RoundWhatADeviceStores) {
  const OneLayer layer;
  for (const double scale : {1.0, 1024.0}) {
    for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
      const auto round = [type](double x) -> double {
        const auto wide = static_cast<float>(x);
        return type == DataType::kFloat16 ? ToFloat(ToFloat16(wide))
                                          : ToFloat(ToBFloat16(wide));
      };
      const auto pass = layer.Pass({.type = type, .loss_scale = scale});
      const double tiny = 0x1p-20;
      const std::vector<double> gradient = pass.Gradient(tiny);
      std::vector<double> want(4);
      for (size_t i = 0; i < 2; ++i) {
        const double x = round(layer.images[i]);
        std::vector<double> z;
        for (size_t k = 0; k < 2; ++k) {
          z.push_back(round(round(layer.parameters[k]) * x +
                            round(layer.parameters[2 + k])));
          EXPECT_EQ(pass.outputs[2 * i + k], z[k]);
        }
        for (size_t k = 0; k < 2; ++k) {
          const double p = std::exp(z[k]) / (std::exp(z[0]) + std::exp(z[1]));
          const double target = layer.labels[i] == static_cast<int>(k) ? 1 : 0;
          const double d = round((p - target) * tiny * scale) / scale;
          want[k] += d * x;
          want[2 + k] += d;
        }
      }
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(gradient[i], want[i], 1e-12 * tiny) << i << " " << scale;
      }
    }
  }
}

// Random rounding goes to one of two neighbours, so that the mean is the
// number. 0.3 lies 0.6 of the way from 0.298828125 to 0.30078125. The mean of
// 400 has a deviation of 2.5% of that way; four deviations fail for one in
// 16,000 sets of seeds, and the seeds are fixed.
TEST(StoredActivationsTest, RoundAtRandomToNeighbours) {
  OneLayer layer;
  layer.parameters = {1, 1, 0, 0};
  double sum = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    const double x =
        layer.Pass({.type = DataType::kBFloat16, .seed = seed}).outputs[0];
    EXPECT_TRUE(x == 0.298828125 || x == 0.30078125) << x;
    sum += x;
  }
  EXPECT_NEAR(sum / 400, layer.images[0], 4 * 0.025 * 0x1p-9);
}

// Compares central differences with gradients. The loss, about 5, is rounded by
// 1e-15; divided by 2 * kStep, that is 1e-9. The third derivative adds kStep^2
// times itself. If the step moves a ReLU's input through zero, half of one
// pixel's part of a gradient appears or disappears.
TEST(NetworkReferenceTest, GradientsAreSlopesOfTheLoss) {
  constexpr double kStep = 1e-6;
  std::mt19937 random(1);
  // Networks with batch norms, and with masks.
  for (const int which : {1, 2, 7}) {
    const Network network = kCases[which].Describe();
    const Problem problem(network);
    std::vector<double> parameters(problem.parameters.begin(),
                                   problem.parameters.end());
    const std::vector<double> running(problem.running.begin(),
                                      problem.running.end());
    const auto pass = [&] {
      return NetworkReference<double>(network, parameters, running,
                                      problem.batch(), /*training=*/true, Keep);
    };
    const std::vector<double> gradient = pass().Gradient(1);
    const Parameters described = CreateParameters(network);
    int compared = 0;
    for (int i = 0; i < described.count(); ++i) {
      const ParameterSpec& spec = described.specs()[i];
      // Tests one of a network's many blocks, and all other tensors.
      const bool chosen = spec.name.find("block") == std::string::npos ||
                          spec.name.find("block3.0") != std::string::npos ||
                          spec.name.find("blocks.1") != std::string::npos;
      if (!chosen || HasZeroGradient(network, i)) continue;
      const auto at = [&](auto& all) {
        return std::span(all).subspan(spec.offset, spec.size);
      };
      const std::vector<double> direction = Direction(at(gradient), random);
      const auto loss = [&](double step) {
        const std::vector<double> before(at(parameters).begin(),
                                         at(parameters).end());
        for (int64_t k = 0; k < spec.size; ++k) {
          at(parameters)[k] += step * direction[k];
        }
        const double loss = pass().loss_sum;
        std::ranges::copy(before, at(parameters).begin());
        return loss;
      };
      const double want = std::inner_product(direction.begin(), direction.end(),
                                             at(gradient).begin(), 0.0);
      ASSERT_GT(std::abs(want), 1e-4) << spec.name;
      EXPECT_NEAR((loss(kStep) - loss(-kStep)) / (2 * kStep), want,
                  1e-8 + 1e-4 * std::abs(want))
          << spec.name;
      ++compared;
    }
    EXPECT_GT(compared, 9) << kCases[which].spec;
  }
}

}  // namespace
}  // namespace lockstep
