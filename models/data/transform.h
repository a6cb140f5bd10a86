// Computes the float32 values of samples from images' bytes: sizes, crops,
// flips, colours, mixtures. Random choices are functions of the run's seed, the
// epoch and the sample.
#ifndef LOCKSTEP_MODELS_DATA_TRANSFORM_H_
#define LOCKSTEP_MODELS_DATA_TRANSFORM_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/resize.h"
#include "models/data/transform_draws.h"
#include "models/data/transform_options.h"

namespace lockstep {

// The label of a sample, which may be mixed. Its loss is share * loss(label) +
// (1 - share) * loss(other).
struct SampleLabel {
  int32_t label = 0;
  int32_t other = 0;
  float share = 1;

  bool operator==(const SampleLabel&) const = default;
};

// One thread's work space for transforming samples. The memory is reused, so
// that nothing is allocated after the largest image.
struct TransformScratch {
  AxisWeights down, across;
  Resizer resizer;
  std::vector<uint8_t> bytes;
  std::vector<float> partner;
};

// Transforms the samples of a data set. Immutable: any number of threads may
// use one object at once, each with its own scratch.
class Transform {
 public:
  // Errors: kInvalidArgument naming the option, if a number is out of its
  // range, or if the size is 0 and the data set's images have different shapes.
  static absl::StatusOr<Transform> Create(const TransformOptions& options,
                                          const Dataset& dataset);

  ImageShape shape() const { return shape_; }  // The shape of every result.
  bool mixes() const { return Mixes(options_); }

  // Reads the sample of the key from the data set and transforms it. The result
  // depends only on key, data set and options. out: host float32 [height,
  // width, channels] of shape(); overwritten. Errors: the data set's.
  absl::StatusOr<SampleLabel> Load(const Dataset& dataset, const SampleKey& key,
                                   TransformScratch& scratch,
                                   std::span<float> out) const;

  // Returns the random choices of the key for an image of that size.
  SampleDraws Draw(const SampleKey& key, const ImageShape& image) const {
    return DrawSample(options_, shape_, key, image);
  }

  // Returns the mixture of the key with one of `size` images, if any.
  std::optional<Mixture> DrawMixture(const SampleKey& key, int64_t size) const {
    return lockstep::DrawMixture(options_, shape_, key, size);
  }

 private:
  Transform(const TransformOptions& options, const ImageShape& shape);

  // Transforms one image, without mixtures.
  absl::Status LoadOne(const Dataset& dataset, const SampleKey& key,
                       TransformScratch& scratch, std::span<float> out) const;
  // Writes all bytes first and then the floats, for results with changed
  // colours or black borders.
  void WriteThroughBytes(const SampleDraws& drawn, int64_t channels,
                         TransformScratch& scratch, std::span<float> out) const;
  // Converts `count` pixels from bytes to floats. channels: the bytes'
  // channels.
  void WriteRow(const uint8_t* bytes, int64_t channels, int64_t count,
                bool flip, float* row) const;
  void AdjustColors(const SampleDraws& drawn, int64_t channels,
                    std::span<uint8_t> bytes) const;

  TransformOptions options_;
  ImageShape shape_;
  // The float for each byte value, by channel.
  std::vector<std::array<float, 256>> values_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_TRANSFORM_H_
