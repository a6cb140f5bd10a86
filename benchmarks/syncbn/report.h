// What a rank of the command `syncbn` does: its turns, the steps of a network
// among them, and its PyTorch, in a process of its own; and the numbers of the
// command, with the formulas behind them.
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

// Has PyTorch's BatchNorm2d timed on one thread, by a Python that runs the
// script SyncBnPeerTorch() (torch_peer.py).
//
// turn.note is "PyTorch 1.13.0 (/usr/bin/python3); its SyncBatchNorm on the
// CPU: ValueError: ...", or "... on the CPU: runs"; turn.missing is set where
// this PyTorch lacks the type or the memory, or does it wrong. Errors:
// kUnavailable and kDeadlineExceeded if the process ended or said nothing by
// `deadline`; kInternal if it said something else.
//
// where: empty, or "cuda DEVICE RANK WORLD_SIZE SETS FILE": on that GPU, where
// calls take turns on so many sets of tensors and are timed by events; its
// SyncBatchNorm if that is the subject, whose processes meet in that file.
// Each time is then the mean of a lap over the sets, and the note is without
// the CPU's.
absl::StatusOr<RankTurn> TimePeer(TorchProcess& peer,
                                  const SyncBnRequest& request,
                                  absl::Time deadline,
                                  const std::string& where = "");

// What torch_peer.py is told, and its answer to that. Errors: kInternal.
std::string PeerLine(const SyncBnRequest& request,
                     const std::string& where = "");
absl::StatusOr<RankTurn> ParsePeerAnswer(const SyncBnRequest& request,
                                         const std::string& answer,
                                         const std::string& where = "");

// A network three times, from the same seed: with local batch norm (kLocal),
// with SyncBatchNorm (kSync), and with SyncBatchNorm whose messages are timed
// (kSplit). Each rank has images of its own. Batch norm's messages have a group
// of their own, and gradients are summed meanwhile, as the trainer has it. Not
// thread safe.
class SyncBnNetwork {
 public:
  // Collective; borrows the group, and `timing`, where timers write.
  // `batch`: images on this rank. Errors: the group's,
  // DescribeTrained's and CreateCpuReplica's.
  static absl::StatusOr<std::unique_ptr<SyncBnNetwork>> Create(
      Communicator& group, CallTiming& timing, const TrainedNetwork& trained,
      uint64_t seed, int64_t batch);

  // Steps (forward, backward, all-reduce of the gradients; no update) of the
  // network that request.subject names; turn.forward has one call for each.
  // turn.wrong: elements of the gradients of the last step that are not finite,
  // differ between ranks, or between kSync and kSplit, if the other has been
  // run. Collective. Errors: the group's.
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
  // By SyncBnSubject. Before the group, which is to be left first
  // (models/train/data_parallel.h).
  std::array<Replica, 3> replicas_;
  std::unique_ptr<Communicator> norm_group_;  // Of SyncBatchNorm's messages.
  std::unique_ptr<TimedCommunicator> timed_group_;
};

struct SyncBnRankOptions {
  std::vector<std::string> pythons;  // Where PyTorch is looked for.
  // Of the group. PyTorch has half of it to start in and half of it for a turn,
  // so that one that hangs is missing before anybody gives up the turn.
  absl::Duration timeout = absl::Seconds(120);
  TrainedNetwork network = {};  // For turns that are steps.
};

// One rank's PyTorch, from its first turn on. Not thread safe.
class SyncBnTorch {
 public:
  // Borrows the group, whose ranks begin a turn together.
  SyncBnTorch(Communicator& group, const SyncBnRankOptions& options)
      : group_(group), options_(options) {}

  // where: as in TimePeer. That there is no PyTorch, that it ended or hangs, or
  // that it lacks the type, is no error, but turn.missing.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request,
                                const std::string& where = "");

 private:
  Communicator& group_;
  const SyncBnRankOptions options_;
  std::optional<absl::StatusOr<TorchProcess>> peer_;  // Once looked for.
};

// Takes turns on one thread. Keeps the memory of one layer shape, that of its
// last turn, and of the network from its first step on; PyTorch until then. Not
// thread safe.
class SyncBnRank {
 public:
  // Borrows the group.
  SyncBnRank(Communicator& group, const SyncBnRankOptions& options);

  // Collective: every rank takes the same turns. Errors: those of the group, of
  // layers and of memory. That there is no PyTorch, that it ended or hangs, or
  // that it or oneDNN lacks the type, is no error, but turn.missing.
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
  LayerSubjects subjects_;  // Of layer_'s channels.
  std::unique_ptr<SyncBnNetwork> network_;
};

// Is a rank of the team (kProcesses: the one that the launcher says; kThreads:
// all of them) and takes turns until the driver that listens at `listener` says
// that it is over. Errors: of the group, of a turn.
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
  std::optional<CallSpread> torch_sync = {};  // Its SyncBatchNorm, on GPUs.
  double message = 0;    // The median of the message alone.
  CallSplit split = {};  // The mean over the middle half of the calls by time.
  // What the timers of the split cost: its median over sync's, less 1.
  double timers = 0;

  // Of the two local ones, that with the smaller median; kLocal if they are
  // alike.
  SyncBnSubject FasterLocal() const;
  const CallSpread& Faster() const;

  // sync / faster local; (sync - message) / faster local.
  double Ratio() const { return sync.median / Faster().median; }
  double Beyond() const { return (sync.median - message) / Faster().median; }
  // torch / sync: above 1 is faster.
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
  int64_t bytes = 0;   // That it must move on each rank; 0: not to speak of.
  // What moving them takes at the bandwidth of the copy.
  std::optional<double> bound_seconds = {};

  // bound_seconds / seconds.
  std::optional<double> Fraction() const {
    return bound_seconds ? std::optional(*bound_seconds / seconds)
                         : std::nullopt;
  }
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
  double copy_seconds = 0;  // The median copy.
  // On GPUs: what the host took to queue SyncBN forward and backward. Where
  // that is as long as both, they are the host's time, and no GPU's.
  std::optional<double> host_seconds = {};
  std::array<PassReport, 3> passes = {};  // By Pass.
  std::vector<KernelReport> kernels = {};
  int64_t wrong = 0;

  // Of own_local in both passes: 3 tensors forward and 5 backward, which the
  // copy reads and writes 2 of each.
  double OwnOfBound() const;
};

struct NetworkReport {
  int64_t batch = 0;  // Images on each rank.
  int rounds = 0;
  CallSpread local;
  CallSpread sync;
  // The rounds' ratios, not seconds: in each the median step with SyncBN over
  // the median step with local batch norm.
  CallSpread ratio;
  CallSplit split;  // `kernels` are 0: they are part of `other`.
  double timers = 0;
  int64_t messages = 0;       // Of SyncBN in a step.
  int64_t message_bytes = 0;  // That a rank gives in them.
  int64_t wrong = 0;

  double Share() const { return 1 - local.median / sync.median; }
  // How much longer a step takes with SyncBN, of the median round.
  double PercentOverLocal() const { return 100 * (ratio.median - 1); }
};

// The bars that the project set itself. SyncBN beyond its message, forward and
// backward, is at most so many times the faster local batch norm.
inline constexpr double kMostBeyond = 1.15;
// A step of the network takes at most so many percent longer with SyncBN than
// with our own local batch norm.
inline constexpr double kMostPercentOverLocal = 2;
inline constexpr int kBarWorldSize = 2;

// The bars on GPUs: the bytes that our own local batch norm must move, forward
// and backward, at the bandwidth of a copy, over its time; and PyTorch's
// SyncBatchNorm over ours.
inline constexpr double kLeastOfBound = 0.9;
inline constexpr double kLeastToTorchSync = 1.3;
// They are for shapes with a copy of so many seconds: a shorter one, and the
// kernels of such a layer, take about as long as their launches and events.
inline constexpr double kLeastCopySeconds = 20e-6;

struct SyncBnReport {
  SyncBnSettings settings;
  report::Origin origin;
  std::string gpu = {};  // Empty if it was measured on the CPU.
  bool shared_gpu = false;
  int sm_mhz = 0;         // The lowest clock that was seen; 0: not known.
  std::string peer = {};  // Which PyTorch; empty if none was measured.
  // What could not be measured, and why: "PyTorch: ...".
  std::vector<std::string> missing;
  std::vector<LayerReport> layers = {};
  std::optional<NetworkReport> network = {};
};

// measured: at least one sample of each subject but kLocal and kTorch.
LayerReport DeriveLayer(const SyncBnSettings& settings, const LayerShape& shape,
                        const MeasuredTurns& measured);
NetworkReport DeriveNetwork(const SyncBnSettings& settings,
                            const MeasuredTurns& measured);

// Adds to report.peer, .gpu, .shared_gpu and .missing what the turns say of
// peers, of GPUs, and of what is missing; nothing twice.
void AddNotes(const MeasuredTurns& measured, SyncBnReport& report);

// Returns whether the step that the settings ask for has a bar: on the CPU that
// of resnet18_d2l on kNetworkBatch images of 1x28x28.
bool StepHasBar(const SyncBnSettings& settings);

// Why the report says nothing of the bars: on the CPU they are for float32 and
// kBarWorldSize ranks, each with a core of its own ("it is for float32"), on
// GPUs for ranks with one each. Empty if there are bars.
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
