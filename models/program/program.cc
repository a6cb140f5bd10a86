#include "models/program/program.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/operation_times.h"
#include "models/program/step_memory.h"

namespace lockstep {
namespace {

void* PointerAt(void* memory, int64_t offset) {
  return offset == StepMemory::kNowhere ? nullptr : Offset(memory, offset);
}

}  // namespace

Program::Program(const Network& network,
                 std::vector<std::unique_ptr<OperationPlan>> plans,
                 int64_t batch, int64_t element_bytes, bool share,
                 AddGradient add)
    : network_(&network), plans_(std::move(plans)), add_(std::move(add)) {
  MemoryOptions options = {.batch = batch,
                           .element_bytes = element_bytes,
                           .training = true,
                           .share = share};
  training_ = PlanMemory(network, plans_, options);
  options.training = false;
  evaluation_ = PlanMemory(network, plans_, options);
}

const void* Program::ValueOf(const StepMemory& memory, const Operands& operands,
                             int value) {
  return value == 0 ? operands.input
                    : PointerAt(operands.memory, memory.values[value]);
}

const void* Program::SecondOf(const StepMemory& memory,
                              const Operands& operands,
                              const Network::Operation& operation) {
  if (operation.inputs.size() < 2) return nullptr;
  return ValueOf(memory, operands, operation.inputs[1]);
}

absl::Status Program::Forward(const Operands& operands, bool training,
                              OperationTimes* times) {
  const StepMemory& memory = MemoryOf(training);
  for (size_t i = 0; i < plans_.size(); ++i) {
    const Network::Operation& operation = network_->operations()[i];
    const StepMemory::Operation& at = memory.operations[i];
    const OperationTimer timer(times == nullptr ? nullptr
                                                : &times->forward_seconds[i]);
    LOCKSTEP_RETURN_IF_ERROR(plans_[i]->Forward(
        {.x = ValueOf(memory, operands, operation.inputs[0]),
         .second = SecondOf(memory, operands, operation),
         .y = PointerAt(operands.memory, memory.values[i + 1]),
         .saved = PointerAt(operands.memory, at.saved),
         .scratch = PointerAt(operands.memory, at.forward_scratch),
         .training = training,
         .batch = operands.batch}));
  }
  return absl::OkStatus();
}

void* Program::output(void* memory, bool training) const {
  return PointerAt(memory, MemoryOf(training).values.back());
}

void* Program::output_gradient(void* memory) const {
  return PointerAt(memory, training_.gradients.back());
}

absl::Status Program::Backward(const Operands& operands,
                               Model::GradientReady ready,
                               OperationTimes* times) {
  for (size_t i = plans_.size(); i-- > 0;) {
    const Network::Operation& operation = network_->operations()[i];
    const StepMemory::Operation& at = training_.operations[i];
    const auto pointer = [&](int64_t offset) {
      return PointerAt(operands.memory, offset);
    };
    const OperationTimer timer(times == nullptr ? nullptr
                                                : &times->backward_seconds[i]);
    LOCKSTEP_RETURN_IF_ERROR(plans_[i]->Backward(
        {.x = ValueOf(training_, operands, operation.inputs[0]),
         .second = SecondOf(training_, operands, operation),
         .y = pointer(training_.values[i + 1]),
         .saved = pointer(at.saved),
         .dy = pointer(training_.gradients[i + 1]),
         .dx = pointer(at.dx),
         .dsecond = pointer(at.dsecond),
         .scratch = pointer(at.backward_scratch),
         .batch = operands.batch},
        ready));
    const auto add = [&](int value, int64_t part) {
      return add_(value, pointer(training_.gradients[value]), pointer(part));
    };
    if (at.add_dsecond) {
      LOCKSTEP_RETURN_IF_ERROR(add(operation.inputs[1], at.dsecond));
    }
    if (at.add_dx) LOCKSTEP_RETURN_IF_ERROR(add(operation.inputs[0], at.dx));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
