// The random masks of dropout and drop path, the same on every device.
#ifndef LOCKSTEP_MODELS_PROGRAM_RANDOM_MASK_H_
#define LOCKSTEP_MODELS_PROGRAM_RANDOM_MASK_H_

#include <cstdint>

#include "base/counter_random.h"
#include "base/host_device.h"

namespace lockstep {

// The share of values that are left out, in [0, 1), in the form that kernels
// need.
struct MaskRate {
  // NOLINTNEXTLINE(google-explicit-constructor): a rate is a number.
  MaskRate(double rate)
      : threshold(static_cast<uint64_t>(rate * 0x1p53)),
        scale(static_cast<float>(1 / (1 - rate))) {}

  uint64_t threshold;  // rate * 2^53.
  float scale;         // 1 / (1 - rate).
};

// The key of a layer's masks in one step: seed, step and samples as in Batch
// (model.h).
struct MaskKey {
  uint64_t seed = 0;
  int64_t step = 0;
  // The samples' numbers [n], in the memory of the device that computes; null:
  // 0 to n - 1.
  const int64_t* samples = nullptr;
  int layer = 0;
  MaskRate rate = 0;
};

// The mask of one sample of a batch. A value and free to copy.
class RandomMask {
 public:
  // sample: the position in the batch.
  LOCKSTEP_HOST_DEVICE RandomMask(const MaskKey& key, int64_t sample)
      : random_(key.seed, static_cast<uint64_t>(key.step),
                static_cast<uint64_t>(
                    key.samples == nullptr ? sample : key.samples[sample]),
                static_cast<uint64_t>(key.layer)),
        rate_(key.rate) {}

  // Returns whether element i is kept, with probability 1 - rate.
  LOCKSTEP_HOST_DEVICE bool Keeps(int64_t i) const {
    return rate_.threshold == 0 ||
           random_.Bits(static_cast<uint64_t>(i)) >> 11 >= rate_.threshold;
  }
  // The factor of the elements that are kept: 1 / (1 - rate).
  LOCKSTEP_HOST_DEVICE float scale() const { return rate_.scale; }

 private:
  CounterRandom random_;
  MaskRate rate_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_RANDOM_MASK_H_
