// A rank that replaces allreduce_rank_nccl in tests and takes the same
// arguments. Its buffers are in host memory. It writes a log if NCCL would.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep::benchmarks {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Logs rank 0's calls in NCCL's format. The calls of our communicator are not
// logged: to NCCL they are sends and receives, which it does not log.
class LoggingGroup : public ForwardingCommunicator {
 public:
  LoggingGroup(Communicator& inner, bool plain)
      : ForwardingCommunicator(inner), plain_(plain) {
    if (Variable("NCCL_DEBUG") != "INFO") return;
    log_.open(absl::StrCat(Variable("NCCL_DEBUG_FILE"), getpid()));
    Log("NCCL version 2.99.0+cuda13.0");
    Log("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM");
  }

  absl::Status Run(const Collective& call) override {
    if (plain_ && rank() == 0 && call.operation != Operation::kBarrier) {
      const int64_t bytes = call.input.size_bytes();
      const std::string algorithm = Variable("NCCL_ALGO");
      Log(absl::StrCat(Name(call.operation), ": ", bytes, " Bytes -> Algo ",
                       algorithm.empty() ? "TREE" : "RING", " proto ",
                       bytes < 1000 ? "LL" : "SIMPLE",
                       " channel{Lo..Hi}={0..1}"));
    }
    return inner().Run(call);
  }

 private:
  void Log(absl::string_view message) {
    log_ << "node:1:1 [0] NCCL INFO " << message << std::endl;
  }

  const bool plain_;
  std::ofstream log_;
};

class FakeTaker : public TurnTaker {
 public:
  using TurnTaker::TurnTaker;

 protected:
  void Describe(AllReduceTurn& turn) const override {
    turn.gpu = absl::StrCat("fake", Variable("NCCL_DEBUG"));
    turn.shared_gpu = 1;
    turn.nccl_environment = {"NCCL_ALGO=" + Variable("NCCL_ALGO")};
  }
};

int Main(char** argv) {
  const bool plain = argv[2] == std::string(Name(TeamKind::kPlainNccl));
  const absl::Status status =
      RunAsRanks(RankKind::kProcesses, /*world_size=*/0, GroupOptions(),
                 [&](Communicator& host) {
                   LoggingGroup group(host, plain);
                   FakeTaker taker(group);
                   return ServeTaker(argv[1], taker);
                 });
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  return argc == 4 ? lockstep::benchmarks::Main(argv) : 2;
}
