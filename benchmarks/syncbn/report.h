// The numbers of the command `syncbn`, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"
#include "report/document.h"

namespace lockstep::benchmarks {

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
  CallSpread own_local;
  std::optional<CallSpread> torch;
  double message = 0;  // The median of the message alone.
  CallSplit split;     // The mean over the middle half of the calls by time.
  // What the timers of the split cost: its median over sync's, less 1.
  double timers = 0;

  // Of the two local ones, that with the smaller median; kLocal if they are
  // alike.
  SyncBnSubject FasterLocal() const;
  const CallSpread& Faster() const;

  double Ratio() const;                   // sync / faster local.
  double Beyond() const;                  // (sync - message) / faster local.
  std::optional<double> ToTorch() const;  // torch / sync: above 1 is faster.
};

// A kernel of SyncBN.
struct KernelReport {
  TimedKernel kernel = TimedKernel::kMoments;
  double seconds = 0;  // As in PassReport::split.
  int64_t bytes = 0;   // That it must move on each rank; 0: not to speak of.
  // What moving them takes at the bandwidth of the copy.
  std::optional<double> bound_seconds = {};

  std::optional<double> Fraction() const;  // bound_seconds / seconds.
};

struct LayerReport {
  LayerShape shape;
  int rounds = 0;
  int64_t tensor_bytes = 0;     // B.
  int64_t forward_message = 0;  // Bytes that a rank gives.
  int64_t backward_message = 0;
  // Bytes read plus bytes written per second by all ranks together, each
  // copying two tensors to two others: 4 P B / the median copy, on its slowest
  // rank.
  double copy_bandwidth = 0;
  std::array<PassReport, 3> passes;  // By Pass.
  std::vector<KernelReport> kernels;
  int64_t wrong = 0;
};

struct NetworkReport {
  int64_t batch = 0;  // Images on each rank.
  int rounds = 0;
  CallSpread local;
  CallSpread sync;
  CallSplit split;  // `kernels` are 0: they are part of `other`.
  double timers = 0;
  int64_t messages = 0;       // Of SyncBN in a step.
  int64_t message_bytes = 0;  // That a rank gives in them.
  int64_t wrong = 0;

  double Share() const { return 1 - local.median / sync.median; }
};

// The bar that the project set itself: SyncBN beyond its message, forward and
// backward, is at most so many times the faster local batch norm.
inline constexpr double kMostBeyond = 1.15;
inline constexpr int kBarWorldSize = 2;

struct SyncBnBar {
  LayerShape shape;
  SyncBnSubject against = SyncBnSubject::kLocal;  // The faster local one.
  double value = 0;

  bool Met() const { return value <= kMostBeyond; }
};

struct SyncBnReport {
  SyncBnSettings settings;
  report::Origin origin;
  std::string gpu;  // Empty if it was measured on the CPU.
  bool shared_gpu = false;
  std::string peer;  // Which PyTorch; empty if none was measured.
  // What could not be measured, and why: "PyTorch: ...".
  std::vector<std::string> missing;
  std::vector<LayerReport> layers;
  std::optional<NetworkReport> network;
};

// measured: at least one sample of each subject but kLocal and kTorch.
LayerReport DeriveLayer(const SyncBnSettings& settings, const LayerShape& shape,
                        const MeasuredTurns& measured);
NetworkReport DeriveNetwork(const SyncBnSettings& settings,
                            const MeasuredTurns& measured);

// Adds to report.peer, .gpu, .shared_gpu and .missing what the turns say of
// peers, of GPUs, and of what is missing; nothing twice.
void AddNotes(const MeasuredTurns& measured, SyncBnReport& report);

// Of ResNet-18's shapes, forward and backward; none if WhyNoBar has a reason.
std::vector<SyncBnBar> BarsOf(const SyncBnReport& report);

// Why the report says nothing of the bar, which is for float32 and
// kBarWorldSize ranks on the CPU, each with a core of its own: "it is for
// float32". Empty if there are bars.
std::string WhyNoBar(const SyncBnReport& report);

// Wrong elements of everything.
int64_t CountWrong(const SyncBnReport& report);

// What the columns of a layer are, for --help as well.
std::vector<report::Term> SyncBnTerms();

// benchmarks/README.md lists the keys of its JSON. `finished`: whether
// everything is measured; what stands below the tables is left out before.
report::Document SyncBnDocument(const SyncBnReport& report,
                                bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_
