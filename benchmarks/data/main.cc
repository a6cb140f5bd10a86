// The command `data`: the speed at which one thread turns JPEGs into augmented
// images, next to torchvision.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/counter_random.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "benchmarks/data/listing.h"
#include "benchmarks/data/peer.h"
#include "benchmarks/data/torch_peer_py.h"
#include "benchmarks/harness/command.h"
#include "benchmarks/harness/interrupt.h"
#include "benchmarks/harness/load.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/jpeg.h"
#include "models/data/load_dataset.h"
#include "models/data/resize.h"
#include "models/data/transform.h"
#include "report/document.h"
#include "report/write.h"

ABSL_FLAG(std::string, image_sizes, "224,112",
          "sides of the resulting images in pixels, measured one after the "
          "other");
ABSL_FLAG(int32_t, images, 64,
          "number of JPEGs, generated with 500 x 375 pixels");
ABSL_FLAG(
    int64_t, listing, 0,
    "if not 0: load no JPEGs, but list this many image files, as a folder "
    "and as a list; ImageNet has about 1280000");
ABSL_FLAG(int32_t, rounds, 7,
          "number of rounds, in each of which every subject loads all images");
ABSL_FLAG(std::string, peers, "torch",
          "torch, or empty, which does not need torchvision");
ABSL_FLAG(std::string, python, "",
          "the Python that has torchvision; default: python3, or else "
          "/usr/bin/python3");
ABSL_FLAG(double, timeout, 120, "seconds that the peer has to answer");

namespace lockstep::benchmarks {
namespace {

constexpr ImageShape kPicture = {375, 500, 3};
constexpr double kBar = 1.5;
constexpr char kName[] = "data";

Usage DataUsage() {
  return {
      .command = "data",
      .introduction = R"(data [FLAGS]

Times how long one thread takes from JPEG files to batches: decoding,
RandomResizedCrop, flip and Normalize. torchvision, by tensors and by Pillow,
takes turns with ours. Shows where our time goes, and whether ours is 1.5 times
as fast as the faster of torchvision's. Compares plain resized images first.
--listing times how long many image files take to list, next to torchvision's
ImageFolder, and shows how much memory their index takes.
)",
      .sections = {{"what is measured",
                    "image_sizes images listing peers python= rounds timeout"},
                   {"output", kOutputFlags}},
      .ending =
          R"(Exit status: 0 if all went well and the images agree, 2 for a wrong flag, 1 for
anything else.
)",
      .words = OutputWords(kName, /*folder=*/"")};
}

// Returns a picture with areas of colour, detail and grain. The picture's JPEG
// of quality 90 has some 70 KB, like photos of that size.
Image MakePicture(uint64_t number) {
  Image picture = {kPicture.height, kPicture.width, 3, {}};
  picture.pixels.assign(kPicture.size(), 0);
  constexpr int64_t kCells[] = {16, 3};
  constexpr int kWeights[] = {195, 50};  // In units of 1/256.
  Resizer resizer;
  for (int layer = 0; layer < 2; ++layer) {
    Image small = {kPicture.height / kCells[layer] + 1,
                   kPicture.width / kCells[layer] + 1,
                   3,
                   {}};
    const CounterRandom random(number, static_cast<uint64_t>(layer));
    for (int64_t i = 0; i < small.shape().size(); ++i) {
      small.pixels.push_back(
          static_cast<uint8_t>(random.Bits(static_cast<uint64_t>(i))));
    }
    AxisWeights down, across;
    down.Compute({small.height, kPicture.height, 0, kPicture.height},
                 Interpolation::kBicubic);
    across.Compute({small.width, kPicture.width, 0, kPicture.width},
                   Interpolation::kBicubic);
    resizer.Begin(down, across, 3);
    resizer.Add(RowsOf(small));
    resizer.Finish([&](int64_t y, const uint8_t* row) {
      uint8_t* const to = picture.pixels.data() + y * kPicture.width * 3;
      for (int64_t i = 0; i < kPicture.width * 3; ++i) {
        to[i] += static_cast<uint8_t>(row[i] * kWeights[layer] / 256);
      }
    });
  }
  const CounterRandom grain(number, 2);
  for (size_t i = 0; i < picture.pixels.size(); ++i) {
    picture.pixels[i] += static_cast<uint8_t>(grain.Bits(i / 3) % 12);
  }
  return picture;
}

// Writes the files of image_folder. train/ has the pictures 00000.jpg and so
// on; test/ has one.
absl::Status WritePictures(const TemporaryFolder& folder, int images) {
  for (const char* part : {"train", "test"}) {
    const std::string dir = absl::StrCat(folder.path(), "/", part, "/a");
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error) return absl::UnavailableError(dir + ": " + error.message());
    for (int i = 0; i < (part[1] == 'r' ? images : 1); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::string jpeg,
          EncodeJpeg(MakePicture(static_cast<uint64_t>(i)), 90));
      LOCKSTEP_RETURN_IF_ERROR(
          ReplaceFile(absl::StrFormat("%s/%05d.jpg", dir, i), jpeg));
    }
  }
  return absl::OkStatus();
}

// The seconds of one thread for all images of the data set.
struct OurTimes {
  double total = 0;   // By Transform::Load.
  double decode = 0;  // Decoding of the files' regions.
  double resize = 0;  // Resizing, without the pass to float32.
};

absl::StatusOr<OurTimes> LoadOurs(const Dataset& dataset,
                                  const Transform& transform, int64_t epoch) {
  OurTimes times;
  TransformScratch scratch;
  std::vector<float> out(transform.shape().size());
  for (int64_t index = 0; index < dataset.size(); ++index) {
    const double start = SteadySeconds();
    LOCKSTEP_RETURN_IF_ERROR(
        transform.Load(dataset, {1, epoch, index}, scratch, out).status());
    times.total += SteadySeconds() - start;
  }
  for (int64_t index = 0; index < dataset.size(); ++index) {
    double resize = 0;
    const double start = SteadySeconds();
    const auto choose = [&](const ImageShape& image) {
      const double drawn = SteadySeconds();
      const ImageRegion crop = transform.Draw({1, epoch, index}, image).crop;
      const ImageShape& shape = transform.shape();
      scratch.down.Compute({crop.height, shape.height, 0, shape.height},
                           Interpolation::kBilinear);
      scratch.across.Compute({crop.width, shape.width, 0, shape.width},
                             Interpolation::kBilinear);
      scratch.resizer.Begin(scratch.down, scratch.across, image.channels);
      resize += SteadySeconds() - drawn;
      return crop;
    };
    const auto take = [&](const PixelRows& rows) {
      const double taken = SteadySeconds();
      scratch.resizer.Add(rows);
      resize += SteadySeconds() - taken;
    };
    LOCKSTEP_RETURN_IF_ERROR(dataset.ReadRegion(index, choose, take));
    const double decoded = SteadySeconds();
    scratch.resizer.Finish([](int64_t, const uint8_t*) {});
    times.decode += decoded - start - resize;
    times.resize += SteadySeconds() - decoded + resize;
  }
  return times;
}

absl::Duration Timeout() { return absl::Seconds(absl::GetFlag(FLAGS_timeout)); }

// Asks the peer to load all images in this way. Returns the numbers of its
// answer, which must be `word` and `numbers` numbers.
absl::StatusOr<std::vector<double>> AskPeer(TorchProcess& peer, const char* way,
                                            int64_t image_size,
                                            const std::string& folder,
                                            const char* word, size_t numbers) {
  const std::string question =
      absl::StrCat(way, " ", image_size, " ", absl::GetFlag(FLAGS_images), " ",
                   folder, "/train/a");
  return AskForNumbers(peer, question, absl::Now() + Timeout(), word, numbers);
}

// The difference between another library's resized images and ours.
struct Difference {
  std::string other = {};
  double levels = 0;  // The largest, of values in [0, 255].
  double share = 0;   // The share of the values that differ.
};

// Returns all images of the data set, resized, as bytes.
absl::StatusOr<std::string> ResizedPixels(const Dataset& dataset,
                                          const TransformOptions& options) {
  TransformOptions plain = WithoutAugmentation(options);
  plain.mean = plain.std = {};
  LOCKSTEP_ASSIGN_OR_RETURN(const Transform transform,
                            Transform::Create(plain, dataset));
  TransformScratch scratch;
  std::vector<float> image(transform.shape().size());
  std::string pixels;
  for (int64_t index = 0; index < dataset.size(); ++index) {
    LOCKSTEP_RETURN_IF_ERROR(
        transform.Load(dataset, {1, 0, index}, scratch, image).status());
    for (const float value : image) {
      pixels += static_cast<char>(std::lround(255 * value));
    }
  }
  return pixels;
}

// Has the peer compare its pixels with ours, which it reads from a file. Error:
// kInternal if a value differs by more than one level.
absl::StatusOr<std::vector<Difference>> CompareImages(
    TorchProcess& peer, const Dataset& dataset, const TransformOptions& options,
    const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string pixels,
                            ResizedPixels(dataset, options));
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(folder + "/train/a/pixels", pixels));
  std::vector<Difference> differences;
  for (const auto& [way, other] : {std::pair("compare_tensor", "torchvision's"),
                                   {"compare_pil", "Pillow's"}}) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<double> values,
        AskPeer(peer, way, options.width, folder, "differ", 2));
    if (values[0] > 1) {
      return absl::InternalError(absl::StrCat(
          "a value of the resized images is ", values[0], " levels from ",
          other, "; ", report::Percent(values[1]), " of the values differ"));
    }
    differences.push_back({other, values[0], values[1]});
  }
  return differences;
}

// A line of the table: the seconds for all images, by round.
struct TimedSubject {
  std::string subject;
  std::vector<double> seconds = {};
};

// The results for one size of image.
struct SizeResult {
  int64_t image_size = 0;
  TimedSubject ours = {"lockstep"}, decode = {"lockstep, decoding alone"},
               resize = {"lockstep, resizing alone"};
  // Empty without a peer.
  std::vector<TimedSubject> peers = {};  // Tensors, Pillow, and decoding.
  std::vector<Difference> differences = {};
};

struct DataReport {
  std::string peer = {};     // PyTorch's and torchvision's names; or empty.
  std::string missing = {};  // The reason if there is no peer.
  int64_t images = 0;
  std::vector<SizeResult> sizes = {};
};

// Returns the median of the faster of torchvision's two ways over our median.
std::optional<double> RatioOf(const SizeResult& result) {
  if (result.peers.empty()) return std::nullopt;
  return std::min(Median(result.peers[0].seconds),
                  Median(result.peers[1].seconds)) /
         Median(result.ours.seconds);
}

absl::StatusOr<SizeResult> MeasureSize(const Dataset& dataset,
                                       int64_t image_size, TorchProcess* peer,
                                       const std::string& folder) {
  TransformOptions options;
  options.height = options.width = image_size;
  LOCKSTEP_RETURN_IF_ERROR(ParseAugmentation("standard", options));
  LOCKSTEP_RETURN_IF_ERROR(ParseMeanAndStd("imagenet", "imagenet", options));
  LOCKSTEP_ASSIGN_OR_RETURN(const Transform transform,
                            Transform::Create(options, dataset));
  SizeResult result = {.image_size = image_size};
  if (peer != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(result.differences,
                              CompareImages(*peer, dataset, options, folder));
    result.peers = {{"torchvision, tensor"},
                    {"torchvision, Pillow"},
                    {"torchvision, decoding alone"}};
  }
  constexpr const char* kWays[] = {"tensor", "pil", "decode"};
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    ShowProgress(absl::StrCat("measuring ", image_size, " pixels, round ",
                              round + 1, " of ", absl::GetFlag(FLAGS_rounds)));
    LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());
    LOCKSTEP_ASSIGN_OR_RETURN(const OurTimes times,
                              LoadOurs(dataset, transform, round));
    result.ours.seconds.push_back(times.total);
    result.decode.seconds.push_back(times.decode);
    result.resize.seconds.push_back(times.resize);
    for (size_t i = 0; i < result.peers.size(); ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<double> seconds,
          AskPeer(*peer, kWays[i], image_size, folder, "loaded", 1));
      result.peers[i].seconds.push_back(seconds[0]);
    }
  }
  ShowProgress("");
  return result;
}

report::Section SectionOf(const SizeResult& result, int64_t images) {
  const auto count = static_cast<double>(images);
  report::Section section = {
      .title = absl::StrCat(result.image_size, " pixels"),
      .table = {.columns = {{"images/s, 1 thread", 27, true},
                            {"median", 9},
                            {"min", 9},
                            {"max", 9},
                            {"over ours", 9}}}};
  const double ours = Median(result.ours.seconds);
  std::vector<const TimedSubject*> lines = {&result.ours, &result.decode};
  for (const TimedSubject& line : result.peers) lines.push_back(&line);
  for (const TimedSubject* const line : lines) {
    const auto [least, most] = std::ranges::minmax(line->seconds);
    const double median = Median(line->seconds);
    section.table.rows.push_back(
        {line->subject, report::Significant(count / median, 3),
         report::Significant(count / most, 3),
         report::Significant(count / least, 3),
         line == &result.ours ? "-" : report::Significant(median / ours, 3)});
  }
  const double decode = Median(result.decode.seconds) / ours;
  const double resize = Median(result.resize.seconds) / ours;
  section.conclusion =
      absl::StrCat("Of our time: decoding ", report::Percent(decode),
                   ", resizing ", report::Percent(resize), ", the rest ",
                   report::Percent(std::max(0.0, 1 - decode - resize)), ".");
  for (const Difference& difference : result.differences) {
    absl::StrAppend(
        &section.conclusion, " Resized images are ", difference.other,
        difference.levels == 0
            ? ", to the bit."
            : absl::StrCat(" within one level; ",
                           report::Significant(100 * difference.share, 2),
                           "% of the values differ."));
  }
  return section;
}

report::Value DifferencesOf(const SizeResult& result) {
  report::Value differences = report::Value::Array();
  for (const Difference& difference : result.differences) {
    differences.Add(report::Value{{"other", difference.other},
                                  {"levels", difference.levels},
                                  {"share", difference.share}});
  }
  return differences;
}

report::Value DataOf(const DataReport& report) {
  report::Value results = report::Value::Array();
  for (const SizeResult& result : report.sizes) {
    report::Value subjects = report::Value::Array();
    std::vector<TimedSubject> lines = {result.ours, result.decode,
                                       result.resize};
    std::ranges::copy(result.peers, std::back_inserter(lines));
    for (const TimedSubject& line : lines) {
      subjects.Add(
          report::Value{{"subject", line.subject}, {"seconds", line.seconds}});
    }
    results.Add(report::Value{{"image_size", result.image_size},
                              {"ratio", RatioOf(result)},
                              {"differences", DifferencesOf(result)},
                              {"subjects", std::move(subjects)}});
  }
  return {{"peer", report::TextOrNull(report.peer)},
          {"not_available", report::TextOrNull(report.missing)},
          {"images", report.images},
          {"results", std::move(results)}};
}

std::string NameOf(const TorchProcess& peer) {
  return absl::StrCat(peer.name(), ", ", peer.remark());
}

// Adds the peer's name to the document, or the reason if there is no peer.
void AddPeer(const TorchProcess* peer, const std::string& missing,
             report::Document& document) {
  if (peer != nullptr) document.notes = {NameOf(*peer)};
  if (!missing.empty()) {
    document.remarks = {"torchvision: not available: " + missing};
  }
}

report::Document DataDocument(const DataReport& report) {
  report::Document document = {
      .name = "lockstep.data",
      .title = "From JPEG files to augmented images",
      .about = absl::StrCat(report.images,
                            " JPEGs of 500 x 375: decoded, cropped at random, "
                            "resized, flipped, normalised, on one thread")};
  for (const SizeResult& result : report.sizes) {
    document.sections.push_back(SectionOf(result, report.images));
    document.bars.push_back(
        {.what = absl::StrCat("JPEGs to images of ", result.image_size),
         .needed = kBar,
         .unit = "times as fast as torchvision",
         .value = RatioOf(result)});
  }
  document.data = DataOf(report);
  return document;
}

absl::StatusOr<std::vector<int64_t>> ImageSizes() {
  std::vector<int64_t> sizes;
  for (const absl::string_view text :
       absl::StrSplit(absl::GetFlag(FLAGS_image_sizes), ',')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size < 1 || size > 4096) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--image_sizes: '", text, "' is not between 1 and 4096"));
    }
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status CheckFlags() {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--images", absl::GetFlag(FLAGS_images), 1, 1000));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--listing", absl::GetFlag(FLAGS_listing), 0, 20'000'000));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRange("--rounds", absl::GetFlag(FLAGS_rounds), 1, 1000));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckSeconds("--timeout", absl::GetFlag(FLAGS_timeout)));
  const std::string peers = absl::GetFlag(FLAGS_peers);
  if (peers.empty() || peers == "torch") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--peers: '", peers, "' is neither torch nor empty"));
}

// Starts the peer that the flags ask for. Returns null if the flags ask for
// none, or if the peer does not start; `missing` is then the reason.
std::unique_ptr<TorchProcess> StartPeer(std::string& missing) {
  if (absl::GetFlag(FLAGS_peers).empty()) return nullptr;
  absl::StatusOr<TorchProcess> started =
      TorchProcess::Start(PythonsToTry(absl::GetFlag(FLAGS_python)),
                          DataPeerTorch(), absl::Now() + Timeout());
  if (started.ok()) return std::make_unique<TorchProcess>(*std::move(started));
  missing = std::string(started.status().message());
  return nullptr;
}

// Shows and writes the report. After an error, the report has the measurements
// from before it.
absl::Status Finish(absl::Status status, std::span<char* const> argv,
                    const ReportOutput& output, report::Document document) {
  document.origin = report::OriginOf("//benchmarks:data", argv);
  AddLoad(output.load.OthersShare(), document);
  if (!status.ok()) {
    document.remarks.push_back(absl::StrCat("the rest: ", status.message()));
  }
  Print(report::TerminalText(document));
  status.Update(output.Write(document));
  return status;
}

absl::Status RunListing(std::span<char* const> argv,
                        const ReportOutput& output) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      ListedFiles files,
      ListedFiles::Make({.files = absl::GetFlag(FLAGS_listing),
                         .rounds = absl::GetFlag(FLAGS_rounds),
                         .timeout = Timeout()}));
  LOCKSTEP_RETURN_IF_ERROR(files.MeasureMemory());
  std::string missing;
  const std::unique_ptr<TorchProcess> peer = StartPeer(missing);
  const absl::Status status = files.MeasureTimes(peer.get());
  report::Document document = files.Document();
  AddPeer(peer.get(), missing, document);
  return Finish(status, argv, output, std::move(document));
}

absl::Status RunLoading(std::span<char* const> argv, const ReportOutput& output,
                        const std::vector<int64_t>& sizes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-data"));
  LOCKSTEP_RETURN_IF_ERROR(WritePictures(folder, absl::GetFlag(FLAGS_images)));
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts,
                            LoadDataset("image_folder", folder.path()));
  DataReport report = {.images = parts.train->size()};
  const std::unique_ptr<TorchProcess> peer = StartPeer(report.missing);
  if (peer) report.peer = NameOf(*peer);
  absl::Status status;
  for (const int64_t size : sizes) {
    absl::StatusOr<SizeResult> result =
        MeasureSize(*parts.train, size, peer.get(), folder.path());
    status = result.status();
    if (!status.ok()) break;
    report.sizes.push_back(*std::move(result));
  }
  report::Document document = DataDocument(report);
  AddPeer(peer.get(), report.missing, document);
  return Finish(status, argv, output, std::move(document));
}

absl::Status Run(std::span<char* const> argv) {
  const InterruptGuard guard;
  LOCKSTEP_RETURN_IF_ERROR(CheckFlags());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ImageSizes());
  LOCKSTEP_ASSIGN_OR_RETURN(const ReportOutput output,
                            ReportOutput::Create(kName, /*folder=*/""));
  return absl::GetFlag(FLAGS_listing) > 0 ? RunListing(argv, output)
                                          : RunLoading(argv, output, sizes);
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::benchmarks::DataUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::benchmarks::Run);
}
