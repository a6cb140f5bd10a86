// Calls of ranks that meet.
#include "tools/cuda/standin/nccl_world.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tools/cuda/standin/nccl_data.h"
#include "tools/cuda/standin/nccl_faults.h"
#include "tools/cuda/standin/queue.h"

namespace lockstep::standin {
namespace {

// One operation of each: they are done.
void Finish(std::span<const Pending> met) {
  for (const Pending& each : met) --each.batch->pending;
  NoteProgress();
}

void MeetCollective(World& world, int64_t number, Damage damage) {
  const auto found = world.collectives.find(number);
  if (static_cast<int>(found->second.size()) < world.size) return;
  std::vector<Pending> met;
  std::vector<const NcclOperation*> operations;
  for (const auto& [rank, pending] : found->second) {
    met.push_back(pending);
    operations.push_back(pending.operation);
    if (!Fit(*operations.front(), *pending.operation)) return;
  }
  MoveCollective(operations, damage);
  Finish(met);
  world.collectives.erase(found);
}

void MeetMessage(World& world, int from, int to, Damage damage) {
  auto& sends = world.sends[{from, to}];
  auto& receives = world.receives[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    const Pending met[] = {sends.front(), receives.front()};
    if (met[0].operation->count != met[1].operation->count ||
        met[0].operation->type != met[1].operation->type) {
      return;
    }
    MoveMessage(*met[0].operation, *met[1].operation, damage);
    Finish(met);
    sends.pop_front();
    receives.pop_front();
  }
}

}  // namespace

void Start(Batch& batch) {
  batch.started = true;
  batch.pending = batch.operations.size();
  for (size_t i = 0; i < batch.operations.size(); ++i) {
    const NcclOperation& operation = batch.operations[i];
    const Pending pending = {&batch, &operation};
    if (operation.call == NcclCall::kSend) {
      batch.world->sends[{batch.rank, operation.peer}].push_back(pending);
      MeetMessage(*batch.world, batch.rank, operation.peer, batch.damage);
    } else if (operation.call == NcclCall::kReceive) {
      batch.world->receives[{operation.peer, batch.rank}].push_back(pending);
      MeetMessage(*batch.world, operation.peer, batch.rank, batch.damage);
    } else {
      batch.world->collectives[batch.numbers[i]][batch.rank] = pending;
      MeetCollective(*batch.world, batch.numbers[i], batch.damage);
    }
  }
}

void Withdraw(Batch& batch) {
  batch.aborted = true;
  const auto is_of_batch = [&](const Pending& p) { return p.batch == &batch; };
  for (auto* const messages : {&batch.world->sends, &batch.world->receives}) {
    for (auto& [ranks, queue] : *messages) std::erase_if(queue, is_of_batch);
  }
  for (auto& [number, arrived] : batch.world->collectives) {
    std::erase_if(arrived,
                  [&](const auto& each) { return is_of_batch(each.second); });
  }
}

}  // namespace lockstep::standin
