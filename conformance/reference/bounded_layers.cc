// The layers of a small network with a running error bound.
#include "conformance/reference/bounded_layers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"

namespace lockstep {
namespace {

std::vector<float> Transposed(std::span<const float> m, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(m.size()) / rows;
  std::vector<float> t(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) t[c * rows + r] = m[r * columns + c];
  }
  return t;
}

// [oc, ic, k, k] to [oc, k, k, ic].
std::vector<float> ChannelsLast(std::span<const float> w, const ConvShape& s) {
  std::vector<float> out(w.size());
  const int64_t taps = s.kernel * s.kernel;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        out[(o * taps + t) * s.in_channels + c] =
            w[(o * s.in_channels + c) * taps + t];
      }
    }
  }
  return out;
}

// Where the window of output (y, x) starts in the input.
int64_t WindowStart(const ConvShape& s, int64_t y, int64_t x) {
  return (y * s.in_side + x) * s.in_channels;
}

void Append(const Bounded& part, int64_t i, Bounded& out) {
  out.value.push_back(part.value[i]);
  out.bound.push_back(part.bound[i]);
}

// All sums, each with the terms of its output, `output_of(i)`.
template <typename OutputOf>
Bounded FinishByOutput(const Sums& sums, const LayerGradient& layer,
                       int world_size, OutputOf output_of) {
  Bounded out(sums.size());
  for (int64_t i = 0; i < sums.size(); ++i) {
    sums.Finish(i, layer.terms[output_of(i)] + world_size, out);
  }
  return out;
}

void AppendBiasGradient(const LayerGradient& layer, int world_size,
                        Bounded& out) {
  const Bounded bias = FinishByOutput(layer.bias, layer, world_size,
                                      [](int64_t i) { return i; });
  for (int64_t i = 0; i < bias.size(); ++i) Append(bias, i, out);
}

}  // namespace

ConvWeights::ConvWeights(std::span<const float> w, std::span<const float> b,
                         const ConvShape& shape)
    : by_output(ChannelsLast(w, shape)),
      by_tap(Transposed(ChannelsLast(w, shape), shape.out_channels)),
      bias(b) {}

LinearWeights::LinearWeights(std::span<const float> w, std::span<const float> b,
                             int64_t inputs)
    : by_input(w), by_output(Transposed(w, inputs)), bias(b) {}

Bounded ConvForward(const Factor& in, const ConvWeights& w,
                    const ConvShape& s) {
  Sums out(s.out_size());
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      out.Add(at, w.bias, 0, s.out_channels);
      for (int64_t ky = 0; ky < s.kernel; ++ky) {
        const int64_t row = WindowStart(s, y + ky, x);
        for (int64_t i = 0; i < s.window_row(); ++i) {
          out.AddScaled(at, in, row + i, w.by_tap,
                        (ky * s.window_row() + i) * s.out_channels,
                        s.out_channels);
        }
      }
    }
  }
  return out.Finish(s.window() + 1);
}

void ConvWeightGradient(const Factor& in, const Factor& delta,
                        const ConvShape& s, LayerGradient& gradient) {
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      gradient.bias.Add(0, delta, at, s.out_channels);
      for (int64_t o = 0; o < s.out_channels; ++o) {
        if (delta.upper[at + o] == 0) continue;
        ++gradient.terms[o];
        for (int64_t ky = 0; ky < s.kernel; ++ky) {
          gradient.weight.AddScaled(o * s.window() + ky * s.window_row(), delta,
                                    at + o, in, WindowStart(s, y + ky, x),
                                    s.window_row());
        }
      }
    }
  }
}

Bounded ConvInputGradient(const Factor& delta, const ConvWeights& w,
                          const ConvShape& s) {
  Sums in(s.in_size());
  std::vector<int64_t> terms(s.in_side * s.in_side);
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      int64_t active = 0;
      for (int64_t o = 0; o < s.out_channels; ++o) {
        if (delta.upper[at + o] == 0) continue;
        ++active;
        for (int64_t ky = 0; ky < s.kernel; ++ky) {
          in.AddScaled(WindowStart(s, y + ky, x), delta, at + o, w.by_output,
                       o * s.window() + ky * s.window_row(), s.window_row());
        }
      }
      for (int64_t t = 0; t < s.kernel * s.kernel; ++t) {
        terms[(y + t / s.kernel) * s.in_side + x + t % s.kernel] += active;
      }
    }
  }
  Bounded out(s.in_size());
  for (int64_t i = 0; i < s.in_size(); ++i) {
    in.Finish(i, terms[i / s.in_channels], out);
  }
  return out;
}

Bounded LinearForward(const Factor& in, const LinearWeights& w) {
  const int64_t outputs = static_cast<int64_t>(w.bias.value.size());
  const int64_t inputs = static_cast<int64_t>(in.value.size());
  Sums out(outputs);
  out.Add(0, w.bias, 0, outputs);
  for (int64_t i = 0; i < inputs; ++i) {
    out.AddScaled(0, in, i, w.by_input, i * outputs, outputs);
  }
  return out.Finish(inputs + 1);
}

void LinearWeightGradient(const Factor& in, const Factor& delta,
                          LayerGradient& gradient) {
  const int64_t outputs = gradient.bias.size();
  gradient.bias.Add(0, delta, 0, outputs);
  for (int64_t i = 0; i < static_cast<int64_t>(in.value.size()); ++i) {
    gradient.weight.AddScaled(i * outputs, in, i, delta, 0, outputs);
  }
  for (int64_t& terms : gradient.terms) ++terms;
}

Bounded LinearInputGradient(const Factor& delta, const LinearWeights& w) {
  const int64_t outputs = static_cast<int64_t>(delta.value.size());
  const int64_t inputs =
      static_cast<int64_t>(w.by_output.value.size()) / outputs;
  Sums in(inputs);
  for (int64_t o = 0; o < outputs; ++o) {
    in.AddScaled(0, delta, o, w.by_output, o * inputs, inputs);
  }
  return in.Finish(outputs);
}

Bounded Relu(const Bounded& z) {
  Bounded out(z.size());
  for (int64_t i = 0; i < z.size(); ++i) {
    out.value[i] = std::max(z.value[i], 0.0);
    out.bound[i] =
        z.value[i] > 0 ? z.bound[i] : std::max(z.value[i] + z.bound[i], 0.0);
  }
  return out;
}

void ReluBackward(const Bounded& z, Bounded& delta) {
  for (int64_t i = 0; i < z.size(); ++i) {
    if (z.value[i] > z.bound[i]) continue;
    const bool ambiguous = z.value[i] + z.bound[i] > 0;
    delta.bound[i] =
        ambiguous ? std::abs(delta.value[i]) + delta.bound[i] : 0.0;
    if (!(z.value[i] > 0)) delta.value[i] = 0;
  }
}

Bounded AveragePool(const Bounded& in, int64_t side, int64_t channels) {
  const int64_t half = side / 2;
  Bounded out(half * half * channels);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t c = i % channels;
    const int64_t x = i / channels % half;
    const int64_t y = i / channels / half;
    double value = 0, magnitude = 0, bound = 0;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at =
          ((2 * y + k / 2) * side + 2 * x + k % 2) * channels + c;
      value += in.value[at] / 4;
      magnitude += std::abs(in.value[at]) / 4;
      bound += in.bound[at] / 4;
    }
    out.value[i] = value;
    out.bound[i] = (bound + Gamma(4) * (magnitude + bound)) * (1 + kOwnError) +
                   4 * kSmallest;
  }
  return out;
}

Bounded AveragePoolBackward(const Bounded& delta, int64_t side,
                            int64_t channels) {
  const int64_t half = side / 2;
  Bounded in(side * side * channels);
  for (int64_t i = 0; i < delta.size(); ++i) {
    const int64_t c = i % channels;
    const int64_t x = i / channels % half;
    const int64_t y = i / channels / half;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at =
          ((2 * y + k / 2) * side + 2 * x + k % 2) * channels + c;
      in.value[at] = delta.value[i] / 4;
      in.bound[at] = delta.bound[i] / 4;
    }
  }
  return in;
}

void AppendConvGradient(const LayerGradient& layer, const ConvShape& s,
                        int world_size, Bounded& out) {
  const Bounded weight =
      FinishByOutput(layer.weight, layer, world_size,
                     [&s](int64_t i) { return i / s.window(); });
  const int64_t taps = s.kernel * s.kernel;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        Append(weight, o * s.window() + t * s.in_channels + c, out);
      }
    }
  }
  AppendBiasGradient(layer, world_size, out);
}

void AppendLinearGradient(const LayerGradient& layer, int world_size,
                          Bounded& out) {
  const int64_t outputs = layer.bias.size();
  const Bounded weight =
      FinishByOutput(layer.weight, layer, world_size,
                     [outputs](int64_t i) { return i % outputs; });
  for (int64_t i = 0; i < weight.size(); ++i) Append(weight, i, out);
  AppendBiasGradient(layer, world_size, out);
}

}  // namespace lockstep
