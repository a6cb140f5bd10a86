// The turns of a rank of the command `syncbn`, with the steps of a network and
// PyTorch in its own process; and the numbers of the command, with their
// formulas.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/data_parallel.h"
#include "report/document.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Times PyTorch's BatchNorm2d on one thread, in a Python that runs the script
// SyncBnPeerTorch() (torch_peer.py).
//
// turn.note is "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the
// CPU: ValueError: ...", or "... on the CPU: runs". turn.missing is set if this
// PyTorch lacks the type or the memory, or gives a wrong result. Errors:
// kUnavailable and kDeadlineExceeded if the process ended or did not answer by
// `deadline`; kInternal if its answer is not understood.
//
// where: empty, or "cuda DEVICE RANK WORLD_SIZE SETS FILE". On that GPU calls
// take turns on so many sets of tensors and are timed by events. If the subject
// is kTorchSync, its SyncBatchNorm is timed, whose processes meet in FILE. Each
// time is then the mean of a lap over the sets, and the note does not mention
// the CPU.
absl::StatusOr<RankTurn> TimePeer(TorchProcess& peer,
                                  const SyncBnRequest& request,
                                  absl::Time deadline,
                                  const std::string& where = "");

// Return the line that torch_peer.py is told, and parse its answer. Errors:
// kInternal.
std::string PeerLine(const SyncBnRequest& request,
                     const std::string& where = "");
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer,
                                         const std::string& where = "");

// A network three times, from the same seed: with local batch norm (kLocal),
// with SyncBatchNorm (kSync), and with SyncBatchNorm whose messages are timed
// (kSplit). Each rank has its own images. Batch norm's messages have their own
// group, and gradients are summed meanwhile, as in the trainer. Not thread
// safe.
class SyncBnNetwork {
 public:
  // Makes the replicas. Collective. Borrows the group, and `timing`, where
  // timers write. `batch`: images on this rank. Errors: the group's,
  // DescribeTrained's and CreateCpuReplica's.
  static absl::StatusOr<std::unique_ptr<SyncBnNetwork>> Create(
      Communicator& group, CallTiming& timing, const TrainedNetwork& trained,
      uint64_t seed, int64_t batch);

  // Runs steps (forward, backward, all-reduce of the gradients; no update) of
  // the network that request.subject names. turn.forward has one call for each
  // step. turn.wrong counts elements of the last step's gradients that are not
  // finite, that differ between ranks, or that differ between kSync and kSplit
  // if both have run. Collective. Errors: the group's.
  absl::StatusOr<RankTurn> Time(const SyncBnRequest& request);

 private:
  struct Replica {
    std::unique_ptr<Model> model;
    std::unique_ptr<GradientReducer> reducer;
    bool stepped = false;
  };

  SyncBnNetwork(Communicator& group, CallTiming& timing, int64_t batch)
      : group_(group), timing_(timing), batch_(batch) {}

  void FillBatch(const NetworkInput& input, uint64_t seed);

  absl::Status Step(Replica& replica);
  absl::StatusOr<int64_t> CountWrong(const Replica& replica);

  Communicator& group_;
  CallTiming& timing_;
  const int64_t batch_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  // By SyncBnSubject. Declared before the group, which must be left before the
  // replicas end (models/train/data_parallel.h).
  std::array<Replica, 3> replicas_;
  std::unique_ptr<Communicator> norm_group_;  // For SyncBatchNorm's messages.
  std::unique_ptr<TimedCommunicator> timed_group_;
};

struct SyncBnRankOptions {
  std::vector<std::string> pythons;  // Where PyTorch is looked for.
  // The timeout of the group. PyTorch has half of it to start and half of it
  // for a turn. So a PyTorch that hangs counts as missing before the turn times
  // out.
  absl::Duration timeout = absl::Seconds(120);
  TrainedNetwork network = {};  // For turns that are steps.
};

// One rank's PyTorch, from its first turn on. Not thread safe.
class SyncBnTorch {
 public:
  // Borrows the group, whose ranks begin a turn together.
  SyncBnTorch(Communicator& group, const SyncBnRankOptions& options)
      : group_(group), options_(options) {}

  // Takes a turn. where: as in TimePeer. If there is no PyTorch, if it ended or
  // hangs, or if it lacks the type, that is not an error: turn.missing says so.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request,
                                const std::string& where = "");

 private:
  Communicator& group_;
  const SyncBnRankOptions options_;
  std::optional<absl::StatusOr<TorchProcess>> peer_;  // Set once PyTorch was
                                                      // looked for.
};

// Takes turns on one thread. Keeps the memory of the last turn's layer shape,
// and that of the network from its first step on. Keeps PyTorch until that
// step. Not thread safe.
class SyncBnRank {
 public:
  // Borrows the group.
  SyncBnRank(Communicator& group, const SyncBnRankOptions& options);

  // Takes a turn. Collective: every rank takes the same turns. Errors: those of
  // the group, of layers and of memory. If there is no PyTorch, if it ended or
  // hangs, or if it or oneDNN lacks the type, that is not an error:
  // turn.missing says so.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request);

 private:
  absl::Status UseLayer(const LayerSpec& spec);
  absl::StatusOr<RankTurn> TimeMessages(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeNetwork(const SyncBnRequest& request);

  Communicator& group_;
  const SyncBnRankOptions options_;
  std::optional<SyncBnTorch> torch_;
  CallTiming timing_;
  CpuBatchNormKernels kernels_;
  TimedKernels timed_kernels_;
  TimedCommunicator timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // For layer_'s channels.
  std::unique_ptr<SyncBnNetwork> network_;
};

// Runs one rank of the team (kProcesses: the launcher's rank) or all ranks
// (kThreads), and takes turns until the driver that listens at `listener`
// closes the connection. Errors: the group's, and those of a turn.
absl::Status RunSyncBnRank(const std::string& listener, RankKind kind,
                           int world_size, const SyncBnRankOptions& options);

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

// Returns what the columns of a layer are; --help shows them too.
std::vector<report::Term> SyncBnTerms();

// Returns the document of the report; benchmarks/README.md lists the keys of
// its JSON. `finished`: whether everything is measured. Without it the parts
// below the tables are left out.
report::Document SyncBnDocument(const SyncBnReport& report,
                                bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_REPORT_H_
