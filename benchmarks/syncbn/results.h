// The order of turns of the command `syncbn`, and its numbers with their
// formulas.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_RESULTS_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_RESULTS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"
#include "report/document.h"

namespace lockstep::benchmarks {

struct MeasuredTurns {
  int rounds = 0;
  std::vector<TeamTurn> subjects;  // In the planned order.

  // Returns the turns of that subject, or null if it was not planned.
  const TeamTurn* Find(SyncBnSubject subject) const;
};

using TakeSyncBnTurn =
    std::function<absl::StatusOr<TeamTurn>(const SyncBnRequest&)>;

// Measure a layer of the shape, or a step of the network, in rounds
// (harness/rounds.h). The number of rounds is settings.rounds, or 3 to 200
// within its part of settings.seconds. A subject that is missing gets no
// further turn. Errors: those of a turn, beginning with the subject's name.
absl::StatusOr<MeasuredTurns> MeasureLayer(const SyncBnSettings& settings,
                                           const LayerShape& shape,
                                           const TakeSyncBnTurn& take_turn,
                                           const ClockFunction& clock);
absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock);

// Seconds of a call on its slowest rank, over all timed calls.
struct CallSpread {
  double median = 0;
  double p25 = 0, p75 = 0, min = 0, max = 0;
  int64_t samples = 0;

  friend bool operator==(const CallSpread&, const CallSpread&) = default;
};

enum class Pass { kForward, kBackward, kBoth };

const char* Name(Pass pass);

struct PassReport {
  Pass pass = Pass::kForward;
  CallSpread sync;
  std::optional<CallSpread> local;  // The library's.
  CallSpread own_local = {};
  std::optional<CallSpread> torch = {};
  std::optional<CallSpread> torch_sync = {};  // PyTorch's SyncBatchNorm, on
                                              // GPUs.
  double message = 0;    // The median of the message alone.
  CallSplit split = {};  // The mean over the middle half of the calls by time.
  // The cost of the split's timers: its median over that of sync, less 1.
  double timers = 0;

  // Returns the local batch norm with the smaller median, or kLocal if they are
  // equal.
  SyncBnSubject FasterLocal() const;
  const CallSpread& Faster() const;

  // Return sync / faster local, and (sync - message) / faster local.
  double Ratio() const { return sync.median / Faster().median; }
  double Beyond() const { return (sync.median - message) / Faster().median; }
  // Return torch / sync: above 1 SyncBN is faster.
  std::optional<double> ToTorch() const {
    return torch ? std::optional(torch->median / sync.median) : std::nullopt;
  }
  std::optional<double> ToTorchSync() const {
    return torch_sync ? std::optional(torch_sync->median / sync.median)
                      : std::nullopt;
  }
};

// A kernel of SyncBN.
struct KernelReport {
  TimedKernel kernel = TimedKernel::kMoments;
  double seconds = 0;  // As in PassReport::split.
  int64_t bytes = 0;   // The bytes to move on each rank; 0: negligible.
  // The time to move the bytes at the bandwidth of the copy.
  std::optional<double> bound_seconds = {};

  // Returns bound_seconds / seconds.
  std::optional<double> Fraction() const {
    return bound_seconds ? std::optional(*bound_seconds / seconds)
                         : std::nullopt;
  }
};

struct LayerReport {
  LayerShape shape;
  int rounds = 0;
  int64_t tensor_bytes = 0;     // B.
  int64_t forward_message = 0;  // Bytes that a rank contributes.
  int64_t backward_message = 0;
  // Bytes read plus bytes written per second by all ranks together, each
  // copying two tensors to two others: 4 P B / the median copy, on its slowest
  // rank.
  double copy_bandwidth = 0;
  double copy_seconds = 0;  // The median copy.
  // On GPUs: the host's time to queue SyncBN forward and backward. If that is
  // as long as both passes, their times are the host's and not the GPU's.
  std::optional<double> host_seconds = {};
  std::array<PassReport, 3> passes = {};  // By Pass.
  std::vector<KernelReport> kernels = {};
  int64_t wrong = 0;

  // Returns the fraction of the bound that own_local reaches in both passes. It
  // moves 3 tensors forward and 5 backward; the copy reads 2 and writes 2.
  double OwnOfBound() const;
};

struct NetworkReport {
  int64_t batch = 0;  // Images on each rank.
  int rounds = 0;
  CallSpread local;
  CallSpread sync;
  // The rounds' ratios, not seconds: in each round the median step with SyncBN
  // over the median step with local batch norm.
  CallSpread ratio;
  CallSplit split;  // `kernels` are 0: they are part of `other`.
  double timers = 0;
  int64_t messages = 0;       // SyncBN's messages in a step.
  int64_t message_bytes = 0;  // Their bytes from one rank.
  int64_t wrong = 0;

  double Share() const { return 1 - local.median / sync.median; }
  // Returns how much longer a step takes with SyncBN, in percent, in the median
  // round.
  double PercentOverLocal() const { return 100 * (ratio.median - 1); }
};

// The bars that the project set itself. SyncBN beyond its message, forward and
// backward, takes at most so many times the faster local batch norm.
inline constexpr double kMostBeyond = 1.15;
// A step of the network takes at most so many percent longer with SyncBN than
// with our own local batch norm.
inline constexpr double kMostPercentOverLocal = 2;
inline constexpr int kBarWorldSize = 2;

// The bars on GPUs: the time to move the bytes of our own local batch norm,
// forward and backward, at the bandwidth of a copy, over its own time; and the
// time of PyTorch's SyncBatchNorm over that of ours.
inline constexpr double kLeastOfBound = 0.9;
inline constexpr double kLeastToTorchSync = 1.3;
// The bars on GPUs are for shapes whose copy takes at least so many seconds.
// For a shorter copy the kernels of the layer take about as long as their
// launches and events.
inline constexpr double kLeastCopySeconds = 20e-6;

struct SyncBnReport {
  SyncBnSettings settings;
  report::Origin origin;
  std::string gpu = {};  // Empty if it was measured on the CPU.
  bool shared_gpu = false;
  int sm_mhz = 0;         // The lowest clock seen; 0: not known.
  std::string peer = {};  // The PyTorch; empty if none was measured.
  // The subjects that could not be measured, and why: "PyTorch: ...".
  std::vector<std::string> missing;
  std::vector<LayerReport> layers = {};
  std::optional<NetworkReport> network = {};
};

// Derive the numbers of a report. measured: at least one sample of each
// subject; for a layer kLocal, kTorch and kTorchSync may be missing.
LayerReport DeriveLayer(const SyncBnSettings& settings, const LayerShape& shape,
                        const MeasuredTurns& measured);
NetworkReport DeriveNetwork(const SyncBnSettings& settings,
                            const MeasuredTurns& measured);

// Adds the turns' notes on PyTorch, GPUs and missing subjects to report.peer,
// .gpu, .shared_gpu, .sm_mhz and .missing. Adds nothing twice.
void AddNotes(const MeasuredTurns& measured, SyncBnReport& report);

// Returns whether the step that the settings ask for has a bar. Only the step
// of resnet18_d2l on the CPU has one, on kNetworkBatch images of 1x28x28.
bool StepHasBar(const SyncBnSettings& settings);

// Returns why the report has no bars ("it is for float32"), or "" if it has. On
// the CPU bars are for float32 and kBarWorldSize ranks, each with its own core.
// On GPUs they are for ranks with one GPU each.
std::string WhyNoBar(const SyncBnReport& report);

// Returns the number of wrong elements in the whole report.
int64_t CountWrong(const SyncBnReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RESULTS_H_
