#include "models/networks/vit.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr double kDeviation = 0.02;
constexpr int64_t kPerceptronRatio = 4;

struct VisionTransformerOptions {
  std::string name;
  int64_t patch = 16;
  int64_t width = 192;
  int64_t depth = 12;
  int64_t heads = 3;
  // The rate after the embedding, after attention's output, and in the MLP.
  double dropout = 0;
  double attention_dropout = 0;
  double drop_path = 0;
};

Value Dropout(Network& network, const std::string& name, const Value& x,
              double rate) {
  return rate > 0 ? network.Dropout(name, x, rate) : x;
}

Value Block(Network& network, const std::string& name, Value x,
            const VisionTransformerOptions& options, double drop_path) {
  const auto linear = [&](const std::string& layer, const Value& in,
                          int64_t out) {
    return network.Linear(layer, in, {.out = out, .per_position = true});
  };
  Value y = network.LayerNorm(name + ".norm1", x);
  y = linear(name + ".attn.qkv", y, 3 * options.width);
  y = network.Attention(name + ".attn", y, options.heads,
                        options.attention_dropout);
  y = linear(name + ".attn.proj", y, options.width);
  y = Dropout(network, name + ".attn.proj_drop", y, options.dropout);
  x = network.Add(name + ".add1", x, y, drop_path);
  y = network.LayerNorm(name + ".norm2", x);
  y = linear(name + ".mlp.fc1", y, kPerceptronRatio * options.width);
  y = network.Gelu(name + ".mlp.act", y);
  y = Dropout(network, name + ".mlp.drop1", y, options.dropout);
  y = linear(name + ".mlp.fc2", y, options.width);
  y = Dropout(network, name + ".mlp.drop2", y, options.dropout);
  return network.Add(name + ".add2", x, y, drop_path);
}

// timm's vision transformer, with its names and first values. A convolution
// cuts patches; class token and position embedding follow. `depth` blocks have
// attention and a two-layer perceptron, each behind a layer norm and with a
// shortcut. A linear head reads the class token. drop_path grows linearly with
// depth and reaches its value in the last block.
Network VisionTransformer(const NetworkInput& input,
                          const VisionTransformerOptions& options) {
  Network network(options.name, input.shape());
  const int64_t patch = options.patch;
  if (input.height % patch != 0 || input.width % patch != 0) {
    network.Fail("patch_embed", absl::StrCat("patches of ", patch, "x", patch,
                                             " do not divide images of ",
                                             input.height, "x", input.width));
    return network;
  }
  const int64_t length = input.height / patch * (input.width / patch) + 1;
  network.Declare("cls_token", {1, 1, options.width});
  network.Declare("pos_embed", {1, length, options.width});
  Value x = network.Convolution(
      "patch_embed.proj", network.input(),
      {.out = options.width, .kernel = patch, .stride = patch});
  x = network.Embed(x, "cls_token", "pos_embed");
  x = Dropout(network, "pos_drop", x, options.dropout);
  for (int64_t i = 0; i < options.depth; ++i) {
    const double drop_path = options.depth == 1
                                 ? 0
                                 : options.drop_path * static_cast<double>(i) /
                                       static_cast<double>(options.depth - 1);
    x = Block(network, absl::StrCat("blocks.", i), std::move(x), options,
              drop_path);
  }
  // Layer norm works by position, so only the class token needs it.
  x = network.FirstPosition("class_token", x);
  x = network.LayerNorm("norm", x);
  network.Linear("head", x, {.out = input.classes});
  std::vector<std::string> linears;
  for (const TensorDescription& parameter : network.parameters()) {
    if (parameter.shape.size() == 2) {
      linears.push_back(
          parameter.name.substr(0, parameter.name.rfind(".weight")));
    }
  }
  // PyTorch's modules draw their weights when constructed, then timm's
  // init_weights draws again.
  network.DrawAsTorchConstructs("patch_embed.proj");
  for (const std::string& layer : linears) network.DrawAsTorchConstructs(layer);
  network.AddDraw("pos_embed", Draw::Kind::kTruncatedNormal, kDeviation);
  network.AddDraw("cls_token", Draw::Kind::kNormal, 1e-6);
  for (const std::string& layer : linears) {
    network.AddDraw(layer + ".weight", Draw::Kind::kTruncatedNormal,
                    kDeviation);
    network.AddDraw(layer + ".bias", Draw::Kind::kConstant, 0);
  }
  return network;
}

// Adds options for every size; `defaults` are the defaults of the named
// network.
NetworkEntry TransformerEntry(const VisionTransformerOptions& defaults,
                              const std::string& what) {
  return {
      .name = defaults.name,
      .options = absl::StrCat(
          "patch=", defaults.patch, ", width=", defaults.width,
          ", depth=", defaults.depth, ", heads=", defaults.heads, ",\n",
          std::string(33, ' '), "dropout=0, attention_dropout=0, drop_path=0"),
      .what = what,
      .source = "timm",
      .describe = [=](const NetworkInput& input, NetworkOptions& options) {
        VisionTransformerOptions vit = defaults;
        vit.patch = options.Integer("patch", vit.patch, 1, 1024);
        vit.width = options.Integer("width", vit.width, 1, kMaxWidth);
        vit.depth = options.Integer("depth", vit.depth, 1, 1000);
        vit.heads = options.Integer("heads", vit.heads, 1, kMaxWidth);
        vit.dropout = options.Rate("dropout", 0);
        vit.attention_dropout = options.Rate("attention_dropout", 0);
        vit.drop_path = options.Rate("drop_path", 0);
        return VisionTransformer(input, vit);
      }};
}

// Returns one of timm's networks with 16x16 patches and heads of 64 channels.
NetworkEntry Patch16(const std::string& size, int64_t width,
                     const std::string& what) {
  NetworkEntry entry =
      TransformerEntry({.name = absl::StrCat("vit_", size, "_patch16_224"),
                        .width = width,
                        .heads = width / 64},
                       what);
  entry.input = {.channels = 3, .height = 224, .width = 224, .classes = 1000};
  entry.benchmark_size = 112;
  entry.benchmark_batch = 16;
  return entry;
}

}  // namespace

std::vector<NetworkEntry> VisionTransformers() {
  return {TransformerEntry(
              {.name = "vit", .patch = 7, .width = 64, .depth = 4, .heads = 4},
              "a small vision transformer, for small images"),
          Patch16("tiny", 192, "ViT-Ti/16"), Patch16("small", 384, "ViT-S/16"),
          Patch16("base", 768, "ViT-B/16")};
}

}  // namespace lockstep
