// Trains with the trainer and digests what it leaves.
#include "conformance/trained_bits.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "conformance/fixtures.h"
#include "models/compute_threads.h"
#include "models/create_model.h"
#include "models/data/dataset.h"
#include "models/data_parallel.h"
#include "models/model.h"
#include "models/model_tensors.h"
#include "models/trainer.h"

namespace lockstep {
namespace {

uint64_t Digest(std::span<const std::byte> bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

void AppendDigests(const NamedTensors& tensors, std::string& out) {
  for (const auto& [name, tensor] : tensors) {
    absl::StrAppend(&out, name, " ", absl::Hex(Digest(tensor.data)), "\n");
  }
}

}  // namespace

absl::StatusOr<std::string> TrainedBits(Communicator& group,
                                        const BitsRun& run) {
  SetComputeThreads(1);
  const Dataset data = BlobDataset(run.steps * run.batch_size);
  // Another draw on each rank: the trainer gives all rank 0's.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                            CreateModel(run.model, 1 + group.rank()));
  TrainerOptions options;
  options.batch_size = run.batch_size;
  options.learning_rate = run.learning_rate;
  options.bucket_bytes = run.bucket_bytes;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(group, *model, data, options));
  std::unique_ptr<Communicator> batch_norm_group;
  if (model->buffers().count() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(batch_norm_group,
                              SynchroniseBatchNorm(group, *model));
  }
  std::string bits;
  const auto on_step = [&](const StepReport& report) {
    const auto loss = std::bit_cast<uint64_t>(report.shard_metrics.loss_sum);
    absl::StrAppend(&bits, "step ", report.step, " loss ", absl::Hex(loss),
                    "\n");
    return true;
  };
  LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, on_step).status());
  AppendDigests(ValueTensors(model->parameters()), bits);
  AppendDigests(BufferTensors(model->buffers()), bits);
  return bits;
}

}  // namespace lockstep
