// The conversion of a layer's weights for oneDNN: from the plain weights in
// Parameters to the formats of the forward and the data primitive.
#ifndef LOCKSTEP_MODELS_CPU_WEIGHTS_H_
#define LOCKSTEP_MODELS_CPU_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "models/cpu/onednn.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {

// A pass of our own that reads plain weights once and writes them in two
// blocked formats. A tile is [o, i, position in the kernel] of a block of
// outputs and inputs. A thread copies a tile to a buffer, which stays in the
// cache, and each format gathers its values from that buffer. Stateless.
class TwoFormatPass {
 public:
  // plain: float32 [o, i, h, w]. Returns no value unless plain is row-major
  // without gaps. Both formats must be float32 or bfloat16 and have blocks of o
  // and i only, of at most kTileValues values.
  static std::optional<TwoFormatPass> Create(const onednn::Desc& plain,
                                             const onednn::Desc& first,
                                             const onednn::Desc& second);

  // Overwrites `first` and `second`, padding included, on the threads of
  // ParallelFor. Rounds bfloat16 to nearest, ties to even.
  void Run(const float* plain, void* first, void* second) const;

  // The size of a thread's buffer, which is on its stack: 128 KiB. A tile of 64
  // x 32 channels with all positions of a 3x3 kernel fits. A pass that copies a
  // tile in parts takes twice as long.
  static constexpr int64_t kTileValues = 32768;

 private:
  // A format: for each position in the kernel, a sequence of blocks of
  // [block_o, block_i] values.
  struct Format {
    int64_t block_o = 1, block_i = 1;
    int64_t blocks_o = 0, blocks_i = 0;  // Padding included.
    // The distance between neighbouring blocks, in values; stride_place is
    // between neighbouring positions in the kernel.
    int64_t stride_o = 0, stride_i = 0, stride_place = 0;
    bool is_bfloat16 = false;
    // The index in a tile of each value of a block, relative to the block's
    // first value.
    std::vector<int32_t> in_tile;
  };

  TwoFormatPass() = default;
  static std::optional<Format> MakeFormat(const onednn::Blocking& plain,
                                          const onednn::Desc& desc);
  bool PlanTiles();
  static void FillTable(const onednn::Desc& desc, int64_t stride_o,
                        int64_t stride_i, Format& format);
  void CopyTile(const float* plain, int64_t o, int64_t i, int64_t place,
                uint32_t* tile) const;
  void WriteTile(const uint32_t* tile, const Format& format, int64_t o,
                 int64_t i, int64_t place, void* to) const;

  int64_t outputs_ = 0, inputs_ = 0, places_ = 0;
  int64_t tile_o_ = 1, tile_i_ = 1, tile_places_ = 1;
  bool is_bfloat16_ = false;  // Both formats are of this type.
  Format first_, second_;
};

// The conversion of a layer's weights, once a step if reads_plain_once(). Not
// thread safe. Throws dnnl::error.
class WeightConversion {
 public:
  WeightConversion() = default;
  // plain: float32 [o, i, h, w]. data: no value if no input gradient is wanted.
  WeightConversion(const dnnl::engine& engine, const onednn::Desc& plain,
                   const onednn::Desc& forward,
                   const std::optional<onednn::Desc>& data);

  // Returns whether the plain weights are read once. They are if only one
  // format is wanted or one serves both primitives, if a primitive takes plain
  // weights, or if TwoFormatPass writes both formats. If false, oneDNN makes
  // each format in a separate pass.
  bool reads_plain_once() const {
    return !needs_two_formats_ || pass_.has_value();
  }

  // The bytes of the weights that the data primitive reads; 0 if it reads the
  // plain weights or is not wanted.
  int64_t data_bytes() const { return data_bytes_; }
  // Returns whether the data primitive reads the weights that Run writes to
  // `forward`.
  bool is_shared() const { return is_shared_; }

  // Writes to `forward` and `data`, which must not overlap. Returns the weights
  // for the forward primitive: `plain` if the primitive takes plain weights,
  // else `forward`. Writes no data weights if `data` is null, is_shared() is
  // true or data_bytes() is 0.
  const void* Run(dnnl::stream& stream, const float* plain, void* forward,
                  void* data);

 private:
  bool is_shared_ = false;
  bool needs_two_formats_ = false;  // Two formats, in training.
  int64_t data_bytes_ = 0;
  Reorder forward_, data_;
  std::optional<TwoFormatPass> pass_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_WEIGHTS_H_
