// Mutants as wrong wirings of the product's parts on a rank.
#include "conformance/cuda/gpu_mutants.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/cuda/gpu_checks.h"
#include "conformance/cuda/gpu_run.h"
#include "conformance/mutant.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/train/gpu_test_rank.h"

namespace lockstep::conformance {
namespace {

// Copies device memory to device memory on a stream.
absl::Status CopyOn(cudaStream_t stream, void* to, const void* from,
                    int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
      "cudaMemcpyAsync");
}

// Device memory that keeps the contents of other device memory.
class Kept {
 public:
  absl::Status Keep(cudaStream_t stream, std::span<const float> values) {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(bytes));
    return CopyOn(stream, memory_.get(), values.data(), bytes);
  }
  absl::Status PutBack(cudaStream_t stream, std::span<float> values) const {
    return CopyOn(stream, values.data(), memory_.get(),
                  static_cast<int64_t>(values.size_bytes()));
  }

 private:
  DeviceMemory memory_;
};

// GpuSteps joins a stream on which the group makes no calls. Derived classes
// make one of the two waits that the streams then lack.
class JoinsAnotherStream : public RankWiring {
 public:
  absl::Status Begin(GpuTestRank& parts, int rank) override {
    LOCKSTEP_ASSIGN_OR_RETURN(event_, MakeEvent());
    return RankWiring::Begin(parts, rank);
  }
  cudaStream_t JoinedStream() override { return parts().another.get(); }

 protected:
  absl::Status Join(const Stream& earlier, const Stream& later) {
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaEventRecord(event_.get(), earlier.get()), "cudaEventRecord"));
    return CudaStatus(cudaStreamWaitEvent(later.get(), event_.get(), 0),
                      "cudaStreamWaitEvent");
  }

 private:
  Event event_;
};

class NoEventBeforeReduction : public JoinsAnotherStream {
 public:
  absl::Status Run(Communicator& group, const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(group.Run(call));
    return Join(parts().communication, parts().another);
  }
};

class NoEventBeforeUpdate : public JoinsAnotherStream {
 public:
  absl::Status Run(Communicator& group, const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(Join(parts().another, parts().communication));
    return group.Run(call);
  }
};

// Sums a bucket of four parameters when the first of their gradients is final.
// GpuSteps calls for each parameter, the last parameter first.
class BucketBeforeLastGradient : public RankWiring {
 public:
  absl::Status Run(Communicator& group, const Collective& call) override {
    constexpr int kParameters = 4;
    if (call.operation != Operation::kAllReduce) return group.Run(call);
    Parameters& all = parts().replica->parameters();
    const int last = all.count() - 1 - calls_++ % all.count();
    if ((all.count() - 1 - last) % kParameters != 0) return absl::OkStatus();
    const int first = std::max(0, last - kParameters + 1);
    const int64_t begin = all.specs()[first].offset;
    const int64_t end = all.specs()[last].offset + all.specs()[last].size;
    return group.Run(Collective::UniformAllReduce(
        all.gradients().subspan(begin, end - begin)));
  }

 private:
  int calls_ = 0;
};

class GraphOfAnotherBatch : public RankWiring {
 public:
  DeviceBatch ShardOf(int step, const DeviceBatch& right) override {
    if (step < kFirstGraph) return right;
    if (!captured_.has_value()) captured_ = right;
    return *captured_;
  }

 private:
  std::optional<DeviceBatch> captured_;
};

// Every batch goes through one pinned buffer, without a wait for its last copy.
class OnePinnedBuffer : public RankWiring {
 public:
  int BufferOf(int) override { return 0; }
};

class MasterNotUpdated : public RankWiring {
 public:
  absl::Status Before(int) override {
    return kept_.Keep(parts().compute.get(), Weight());
  }
  absl::Status After(int) override {
    return kept_.PutBack(parts().compute.get(), Weight());
  }

 private:
  std::span<float> Weight() {
    Parameters& parameters = parts().replica->parameters();
    return parameters.value(parameters.count() - 2);
  }

  Kept kept_;
};

class MasterIn16Bits : public RankWiring {
 public:
  absl::Status After(int) override {
    const std::span<float> values = parts().replica->parameters().values();
    std::vector<float> host(values.size());
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaStreamSynchronize(parts().compute.get()), "cudaStreamSynchronize"));
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(host.data(), values.data(), values.size_bytes(),
                              cudaMemcpyDeviceToHost),
                   "cudaMemcpy"));
    for (float& value : host) value = ToFloat(ToBFloat16(value));
    return CudaStatus(cudaMemcpy(values.data(), host.data(),
                                 values.size_bytes(), cudaMemcpyHostToDevice),
                      "cudaMemcpy");
  }
};

// Forward and backward read weights as they were before rank 0's replaced them;
// the update changes the right ones. The last call of a step's sums comes
// between the two.
class StaleCopy : public RankWiring {
 public:
  absl::Status Begin(GpuTestRank& parts, int rank) override {
    LOCKSTEP_RETURN_IF_ERROR(RankWiring::Begin(parts, rank));
    return start_.Keep(parts.compute.get(), Values());
  }
  absl::Status Before(int) override {
    LOCKSTEP_RETURN_IF_ERROR(master_.Keep(parts().compute.get(), Values()));
    return start_.PutBack(parts().compute.get(), Values());
  }
  absl::Status Run(Communicator& group, const Collective& call) override {
    LOCKSTEP_RETURN_IF_ERROR(group.Run(call));
    const bool is_last =
        call.operation == Operation::kAllReduce &&
        call.output.data == parts().replica->parameters().gradients().data();
    return is_last ? master_.PutBack(parts().compute.get(), Values())
                   : absl::OkStatus();
  }

 private:
  std::span<float> Values() { return parts().replica->parameters().values(); }

  Kept start_, master_;
};

// The rank whose own gradients are not finite leaves them out of the sum, and
// skips the step alone.
class SkipsAlone : public RankWiring {
 public:
  explicit SkipsAlone(int step) : step_(step) {}
  absl::Status Before(int step) override {
    overflows_ = step == step_ && rank() == 1;
    return absl::OkStatus();
  }
  absl::Status Run(Communicator& group, const Collective& call) override {
    if (!overflows_) return group.Run(call);
    const std::span<float> own(static_cast<float*>(call.output.data),
                               static_cast<size_t>(call.output.count));
    const cudaStream_t stream = parts().communication.get();
    Kept kept;
    LOCKSTEP_RETURN_IF_ERROR(kept.Keep(stream, own));
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(own.data(), 0, own.size_bytes(), stream),
                   "cudaMemsetAsync"));
    LOCKSTEP_RETURN_IF_ERROR(group.Run(call));
    kept_.push_back(std::move(kept));
    return kept_.back().PutBack(stream, own);
  }

 private:
  const int step_;
  bool overflows_ = false;
  std::vector<Kept> kept_;  // The copies may not have run yet.
};

class OwnLossScale : public RankWiring {
 public:
  void Choose(int rank, CudaReplicaOptions& options) override {
    if (rank == 1) options.first_loss_scale /= 2;
  }
};

class SeedOfRank : public RankWiring {
 public:
  Batch BatchOf(const Batch& right) override {
    Batch batch = right;
    batch.seed += static_cast<uint64_t>(rank());
    return batch;
  }
};

class NumbersOfRank : public RankWiring {
 public:
  Batch BatchOf(const Batch& right) override {
    Batch batch = right;
    batch.samples = {};
    return batch;
  }
};

class StartNotBroadcast : public RankWiring {
 public:
  absl::Status Run(Communicator& group, const Collective& call) override {
    return call.operation == Operation::kBroadcast ? absl::OkStatus()
                                                   : group.Run(call);
  }
};

template <typename Wired, typename... Args>
Wiring Wire(Args... args) {
  return [=] { return std::make_unique<Wired>(args...); };
}

absl::StatusOr<Caught> PlantIn(const GpuRun& run, const Wiring& wiring,
                               const std::string& naming) {
  LOCKSTEP_ASSIGN_OR_RETURN(const GpuTrace trace, RunOnGpus(run, wiring));
  const NetworkVerdicts verdicts = CheckGpuRun(run, trace);
  std::vector<std::pair<std::string, absl::Status>> in_order;
  for (const std::string check : kGpuChecks) {
    in_order.emplace_back(check, verdicts.checks.at(check));
  }
  for (const auto& [check, status] : verdicts.checks) {
    if (status.ok() || std::ranges::count(kGpuChecks, check) > 0) continue;
    return absl::InternalError(absl::StrCat(
        check, ", which has no mutant here: ", std::string(status.message())));
  }
  return CaughtBy(in_order, naming);
}

Mutant Planted(Mutant mutant, const GpuRun& run, const Wiring& wiring) {
  mutant.plant = [run, wiring, naming = mutant.checks[0]] {
    return PlantIn(run, wiring, naming);
  };
  return mutant;
}

// With work held back, the reduction's urgent stream runs first.
constexpr auto kHeldBack = StreamOrder::kOldestFirst;

std::vector<Mutant> MutantsOfOrder() {
  return {
      Planted({"StartNotBroadcast", "the ranks keep their own first weights",
               "SameStart, RanksAgree, Gradients, Loss",
               "parameters: W1, not broadcast from rank 0?"},
              {}, Wire<StartNotBroadcast>()),
      Planted({"NoEventBeforeReduction",
               "no event makes the reduction wait for the backward pass",
               "Gradients, RanksAgree",
               "does the reduction not wait for the backward pass?"},
              {.bucket_bytes = 1, .order = kHeldBack},
              Wire<NoEventBeforeReduction>()),
      Planted({"NoEventBeforeUpdate",
               "no event makes the update wait for the reduction",
               "Updates, RanksAgree",
               "does the update not wait for the reduction?"},
              {.order = kHeldBack}, Wire<NoEventBeforeUpdate>()),
      Planted({"BucketBeforeLastGradient",
               "a bucket is reduced at its first gradient, not at its last",
               "Gradients, RanksAgree",
               "is a bucket reduced before its last gradient?"},
              {.bucket_bytes = 1}, Wire<BucketBeforeLastGradient>()),
      Planted({"GraphOfAnotherBatch",
               "every replay reads the batch that its graph was captured with",
               "Gradients, Loss",
               "was the graph captured with another batch's memory?"},
              {.steps = kFirstGraph + 2, .graphs = true},
              Wire<GraphOfAnotherBatch>()),
      Planted({"OnePinnedBuffer",
               "pinned memory is filled again before its copy to the GPU ran",
               "Gradients, Loss",
               "was pinned memory filled again before its copy to the GPU?"},
              {.steps = 2, .order = kHeldBack}, Wire<OnePinnedBuffer>()),
  };
}

std::vector<Mutant> MutantsOfNumbers() {
  constexpr auto kFloat16 = ConvolutionPrecision::kFloat16;
  constexpr auto kBFloat16 = ConvolutionPrecision::kBFloat16;
  return {
      Planted({"MasterNotUpdated", "the update leaves one weight out",
               "Updates", "is its master weight not updated?"},
              {.precision = kBFloat16}, Wire<MasterNotUpdated>()),
      Planted({"MasterIn16Bits", "the weights are kept in bfloat16 alone",
               "Updates", "no float32 master weights?"},
              {.precision = kBFloat16}, Wire<MasterIn16Bits>()),
      Planted({"StaleCopy",
               "the 16-bit copy of the weights is that of the rank's start",
               "Gradients, Loss", "is the 16-bit copy stale?"},
              {.precision = kBFloat16}, Wire<StaleCopy>()),
      Planted({"SkipsAlone",
               "the rank whose own gradients overflow skips the step, the "
               "other takes it",
               "Skips", "does each rank look at its own in place of the sum?"},
              {.steps = 2, .precision = kFloat16, .huge_step = 1},
              Wire<SkipsAlone>(1)),
      Planted({"OwnLossScale", "rank 1 begins with another loss scale",
               "Skips, RanksAgree, Gradients",
               "hold the loss scales 65536 and 32768: chosen by each rank"},
              {.precision = kFloat16}, Wire<OwnLossScale>()),
      Planted({"SeedOfRank", "each rank draws dropout masks with its own seed",
               "Gradients, Loss", "drawn per rank, not per sample?"},
              {.tested = &TestedVit()}, Wire<SeedOfRank>()),
      Planted(
          {"NumbersOfRank", "masks are keyed by a sample's number on its rank",
           "Gradients, Loss", "keyed by the rank's own numbers?"},
          {.tested = &TestedVit()}, Wire<NumbersOfRank>()),
  };
}

}  // namespace

MutantSuite GpuMutants() {
  std::vector<Mutant> mutants = MutantsOfOrder();
  std::ranges::move(MutantsOfNumbers(), std::back_inserter(mutants));
  return MakeSuite("cuda", kGpuChecks, std::move(mutants));
}

}  // namespace lockstep::conformance
