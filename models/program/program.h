// A network's operations for one batch size, in order, over one array of
// memory: the part of a training step that does not depend on the device.
#ifndef LOCKSTEP_MODELS_PROGRAM_PROGRAM_H_
#define LOCKSTEP_MODELS_PROGRAM_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/operation_times.h"
#include "models/program/step_memory.h"

namespace lockstep {

// Movable. Not thread safe.
class Program {
 public:
  // Adds `part` to `gradient`, which is a part of the gradient of value number
  // `value` of the network. Both are [n * size of the value].
  using AddGradient =
      std::function<absl::Status(int value, void* gradient, const void* part)>;

  // The memory of a step: that of the plans' device, and what the plans read
  // from elsewhere.
  struct Operands {
    void* memory;        // [bytes(training)], aligned to 64 bytes.
    const void* input;   // The images, of the activations' type and layout.
    const Batch* batch;  // For the keys of random masks.
  };

  // network: outlives the program. plans: plans[i] computes operation i for a
  // batch of `batch` samples. element_bytes: the size of an activation. share:
  // if false, no two buffers of a step share memory.
  Program(const Network& network,
          std::vector<std::unique_ptr<OperationPlan>> plans, int64_t batch,
          int64_t element_bytes, bool share, AddGradient add);

  // Returns the bytes of memory that a step needs, in training or evaluation.
  int64_t bytes(bool training) const { return MemoryOf(training).bytes; }
  const std::vector<std::unique_ptr<OperationPlan>>& plans() const {
    return plans_;
  }

  // Runs all operations forward. Each adds its time to `times`, unless that is
  // null. Errors: the plans'.
  absl::Status Forward(const Operands& operands, bool training,
                       OperationTimes* times = nullptr);

  // Returns where Forward leaves the result of the last operation, and where
  // Backward reads its gradient: [n * classes].
  void* output(void* memory, bool training) const;
  void* output_gradient(void* memory) const;

  // Runs all operations backward, after Forward in training. Calls `ready` for
  // each parameter once the work that computes its gradient is done, or
  // enqueued. Errors: the plans' and those of AddGradient.
  absl::Status Backward(const Operands& operands, Model::GradientReady ready,
                        OperationTimes* times = nullptr);

 private:
  const StepMemory& MemoryOf(bool training) const {
    return training ? training_ : evaluation_;
  }
  // Return an operation's inputs; null for a second input that does not exist.
  static const void* ValueOf(const StepMemory& memory, const Operands& operands,
                             int value);
  static const void* SecondOf(const StepMemory& memory,
                              const Operands& operands,
                              const Network::Operation& operation);

  const Network* network_;
  std::vector<std::unique_ptr<OperationPlan>> plans_;
  AddGradient add_;
  StepMemory training_;
  StepMemory evaluation_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_PROGRAM_H_
