#include "standin/device.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "standin/control.h"
#include "standin/include/device_code.h"
#include "standin/runtime.h"

namespace lockstep::standin {

constinit Mutex device_mutex;

Device& Device::Get() {
  // Never destroyed, because destructors of static objects may use streams.
  static Device& device = *new Device;
  return device;
}

void Device::SetSchedule(const Schedule& schedule) {
  schedule_ = schedule;
  memory_waits_.clear();
}

void Device::AddStream(std::unique_ptr<CUstream_st> stream) {
  stream->number = ++streams_made_;
  streams_.push_back(std::move(stream));
}

CUstream_st* Device::Find(cudaStream_t stream) {
  const int device = stream == nullptr ? CurrentDevice() : 0;
  for (const auto& each : streams_) {
    if (stream == nullptr ? each->number == 0 && each->device == device
                          : each.get() == stream) {
      return each->destroyed ? nullptr : each.get();
    }
  }
  if (stream != nullptr) return nullptr;
  streams_.insert(streams_.begin(), std::make_unique<CUstream_st>());
  streams_.front()->device = device;
  return streams_.front().get();
}

bool Device::IsIdle(int device) const {
  return std::ranges::all_of(streams_, [device](const auto& each) {
    return each->device != device || each->work.empty();
  });
}

void Device::AddEvent(cudaEvent_t event, std::shared_ptr<EventState> state) {
  events_[event] = std::move(state);
}

bool Device::RemoveEvent(cudaEvent_t event) { return events_.erase(event) > 0; }

std::shared_ptr<EventState> Device::Find(cudaEvent_t event) const {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second;
}

bool Device::IsDropped(int64_t waited_for_on, int64_t recorded_on) const {
  switch (schedule_.dropped_waits) {
    case DroppedWaits::kOfOlderStreams:
      return waited_for_on < recorded_on;
    case DroppedWaits::kOfNewerStreams:
      return waited_for_on > recorded_on;
    case DroppedWaits::kNone:
      break;
  }
  return false;
}

bool Device::ShouldDropMemoryWait(int device) {
  return memory_waits_[device]++ == schedule_.dropped_memory_wait;
}

// Returns whether the stream's next item must wait for an earlier item. A
// blocking stream waits for the default stream of its device. The default
// stream waits for all blocking streams of its device.
bool Device::WaitsForDefaultStream(const CUstream_st& stream) const {
  const bool is_default = stream.number == 0;
  if (!is_default && !stream.blocking) return false;
  return std::ranges::any_of(streams_, [&](const auto& other) {
    return other->device == stream.device && !other->work.empty() &&
           (is_default ? other->blocking : other->number == 0) &&
           other->work.front().number < stream.work.front().number;
  });
}

bool Device::RunFront(CUstream_st& stream) {
  progressed_ = false;
  while (stream.released > 0 && !WaitsForDefaultStream(stream) &&
         stream.work.front().work()) {
    stream.work.pop_front();
    --stream.released;
    progressed_ = true;
  }
  return progressed_;
}

// Returns the streams in the order in which they run their work.
std::vector<CUstream_st*> Device::StreamsInRunOrder() const {
  std::vector<CUstream_st*> streams;
  for (const auto& stream : streams_) streams.push_back(stream.get());
  if (schedule_.order == Order::kNewestStreamFirst) {
    std::ranges::reverse(streams);
  }
  std::ranges::stable_sort(streams, {}, &CUstream_st::priority);
  return streams;
}

// Runs the first stream that has something to run.
bool Device::RunOnce() {
  std::erase_if(streams_, [](auto& stream) {
    return stream->destroyed && stream->work.empty();
  });
  return std::ranges::any_of(StreamsInRunOrder(),
                             [this](CUstream_st* stream)
                                 ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
                                   return RunFront(*stream);
                                 });
}

void Device::Poll() {
  constexpr auto kHeldBackAtMost = std::chrono::seconds(1);
  ++polls_;
  const auto now = std::chrono::steady_clock::now();
  const int device = CurrentDevice();
  for (const auto& stream : streams_) {
    const bool mine = stream->number == 0
                          ? stream->device == device
                          : stream->owner == std::this_thread::get_id();
    if (mine || now - stream->last_put > kHeldBackAtMost) {
      stream->released = stream->work.size();
    }
  }
  RunWork();
}

void Device::NoteQuery(EventState& event) {
  constexpr int kInARow = 10;
  constexpr auto kPause = std::chrono::milliseconds(1);
  const auto now = std::chrono::steady_clock::now();
  if (now - std::exchange(event.queried, now) >= kPause) event.queries = 0;
  if (++event.queries < kInARow || event.recorded_on == 0) return;
  const auto recorded_on =
      std::ranges::find(streams_, event.recorded_on,
                        [](const auto& each) { return each->number; });
  if (recorded_on == streams_.end()) return;
  for (const auto& each : streams_) {
    if (each->owner == (*recorded_on)->owner) {
      each->released = each->work.size();
    }
  }
}

void Device::Append(CUstream_st& stream, Work work) {
  stream.work.push_back({++items_, std::move(work)});
  stream.last_put = std::chrono::steady_clock::now();
  if (schedule_.order == Order::kAtOnce) Release(stream);
}

void Device::RunWork() {
  while (RunOnce()) done_.NotifyAll();
}

void Device::Release(CUstream_st& stream) {
  stream.released = stream.work.size();
  RunWork();
}

bool DeviceLock::WaitUntil(const std::function<bool()>& ready,
                           std::chrono::milliseconds limit) {
  Device& device = Device::Get();
  const auto start = std::chrono::steady_clock::now();
  device.Poll();
  while (!ready()) {
    if (std::chrono::steady_clock::now() - start > limit) return false;
    device.done_.WaitFor(lock_, std::chrono::milliseconds(1));
    device.Poll();
  }
  return true;
}

void DeviceLock::WaitForHosts(const std::function<bool()>& ready) {
  while (!ready()) {
    Device::Get().done_.WaitFor(lock_, std::chrono::milliseconds(1));
  }
}

bool DeviceLock::WaitForDevice(int device, std::chrono::milliseconds limit) {
  Device& all = Device::Get();
  for (const auto& each : all.streams()) {
    if (each->device == device) each->released = each->work.size();
  }
  ++all.device_waits_[device];
  const bool idle = WaitUntil([&all, device]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                  device_mutex) { return all.IsIdle(device); },
                              limit);
  --all.device_waits_[device];
  all.done_.NotifyAll();
  return idle;
}

void DeviceLock::BeginQuery() {
  if (!CurrentDevices().queries_wait_for_frees) return;
  Device& device = Device::Get();
  const int current = CurrentDevice();
  device.done_.Wait(
      lock_, [&device, current]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(device_mutex) {
        return device.device_waits_[current] == 0;
      });
}

void SetSchedule(const Schedule& schedule) {
  const DeviceLock lock;
  lock->SetSchedule(schedule);
}

}  // namespace lockstep::standin
