#!/usr/bin/env python3
"""Computes the project's networks with PyTorch: torch_networks.py FOLDER [--no_timm]

FOLDER/cases has a line for each case: its folder below FOLDER, the network as --model names it, the images' channels,
height and width, the classes, the task, and world sizes. The tasks write these files to the case's folder:

names   "order": the names and shapes of parameters, then those of buffers, in the order of state_dict; a line "--" ends
        each list
first   also "first", a safetensors file: the state_dict after torch.manual_seed(3) and the module's construction
step    reads "weights", which must load strictly, and "batch": images [n, c, h, w], labels, and perhaps others and
        shares. For each world size N, "answer_N" has, in float64, the outputs, loss, gradients and buffers of one
        training step on N ranks, each of which normalises its own block of the batch as torch.chunk cuts it; it also has
        "evaluation", the outputs in evaluation before the step. "saved" has the weights as PyTorch saves them
own:S   like step, but the weights are the module's own after torch.manual_seed(S); without a world size, only "saved"
clear:S like own:S, but the bias of every batch norm is moved so that no ReLU's input is near zero (move_biases)
back:S  reads "checkpoint", which must load strictly and have the parameters of own:S, and counters of 1

Networks are torchvision's and timm's own modules. A width other than torchvision's is torchvision's class with fewer
channels, whose first values mean nothing. This file also has a copy of timm's vision transformer, because no
distribution has timm, and because dropout needs the test's masks. The copy is used for dropout, without timm, and with
--no_timm. If timm is installed, the copy of `vit` is compared with it. The first line of the output names the versions;
each other line names the module of a case.
"""
import copy
import json
import math
import os
import re
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

try:
    import safetensors.torch
except ImportError:
    safetensors = None
try:
    import torchvision
except ImportError:
    torchvision = None
try:
    import timm
    from timm.models import vision_transformer as timm_vit
except ImportError:
    timm = None
if "--no_timm" in sys.argv:
    timm = None

TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32}
NAMES = {np.dtype(t): name for name, t in TYPES.items()}


def save(path, tensors):
    """Writes a safetensors file, with the package or by the format: the header's length, the header in JSON, the bytes."""
    if safetensors:
        safetensors.torch.save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        return
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor.detach().numpy()).reshape(tuple(tensor.shape))
        part = array.tobytes()
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def load(path):
    if safetensors:
        return safetensors.torch.load_file(path)
    with open(path, "rb") as f:
        content = f.read()
    size = struct.unpack("<Q", content[:8])[0]
    tensors = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(content[8 + size + begin:8 + size + end], TYPES[entry["dtype"]])
        tensors[name] = torch.from_numpy(array.reshape(entry["shape"]).copy())
    return tensors


class LeNet(nn.Module):
    """The network of the d2l chapter, a function of W1, b1 to W4, b4."""

    def __init__(self, c, h, w, classes, batch_norm):
        super().__init__()
        features = 50 * (((h - 2) // 2 - 4) // 2) * (((w - 2) // 2 - 4) // 2)
        shapes = ((20, c, 3, 3), (50, 20, 5, 5), (features, 128), (128, classes))
        for i, shape in enumerate(shapes, 1):
            self.register_parameter("W%d" % i, nn.Parameter(torch.randn(shape) * 0.01))
            self.register_parameter("b%d" % i, nn.Parameter(torch.zeros(shape[0] if i < 3 else shape[1])))
            if batch_norm and i < 3:
                self.add_module("bn%d" % i, nn.BatchNorm2d(shape[0]))

    def named_parameters(self, *args, **kwargs):
        """Returns the parameters in the order of the chapter's list, layer by layer."""
        return sorted(super().named_parameters(*args, **kwargs), key=lambda item: re.search("[0-9]", item[0])[0])

    def forward(self, x):
        for i in (1, 2):
            x = F.conv2d(x, getattr(self, "W%d" % i), getattr(self, "b%d" % i))
            x = F.relu(getattr(self, "bn%d" % i, lambda z: z)(x))
            x = F.avg_pool2d(x, 2, 2)
        x = F.relu(x.flatten(1) @ self.W3 + self.b3)
        return x @ self.W4 + self.b4


class Residual(nn.Module):
    """The residual block of the d2l book."""

    def __init__(self, cin, cout, use_1x1conv=False, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, kernel_size=3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(cout, cout, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(cin, cout, kernel_size=1, stride=stride) if use_1x1conv else None
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.conv3 is None else self.conv3(x)))


def d2l_resnet18(c, classes, width=64):
    net = nn.Sequential(nn.Conv2d(c, width, kernel_size=3, stride=1, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    cin = width
    for stage in range(4):
        cout = width << stage
        first = Residual(cin, cout) if cin == cout else Residual(cin, cout, True, 2)
        net.add_module(f"resnet_block{stage + 1}", nn.Sequential(first, Residual(cout, cout)))
        cin = cout
    net.add_module("global_avg_pool", nn.AdaptiveAvgPool2d((1, 1)))
    net.add_module("fc", nn.Sequential(nn.Flatten(), nn.Linear(cin, classes)))
    for module in net.modules():
        if type(module) in (nn.Linear, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
    return net


def torchvision_resnet(depth, c, classes, width=64):
    if width == 64 and c == 3:
        return getattr(torchvision.models, "resnet%d" % depth)(num_classes=classes)
    resnet = torchvision.models.resnet

    class Narrow(resnet.ResNet):
        """torchvision's ResNet with `width` channels in the first stage instead of 64."""

        def _make_layer(self, block, planes, *args, **kwargs):
            if planes == 64 and width != 64:
                self.inplanes = width
                self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
                self.bn1 = nn.BatchNorm2d(width)
            return super()._make_layer(block, planes * width // 64, *args, **kwargs)

    block = resnet.Bottleneck if depth == 50 else resnet.BasicBlock
    net = Narrow(block, [2, 2, 2, 2] if depth == 18 else [3, 4, 6, 3], num_classes=classes)
    if width != 64:
        net.fc = nn.Linear(8 * width * block.expansion, classes)
    if c != 3:
        net.conv1 = nn.Conv2d(c, width, kernel_size=7, stride=2, padding=3, bias=False)
    return net


class Masked(nn.Module):
    """Dropout with the test's mask, a function of layer, sample and element: the same wherever it is computed."""

    def __init__(self, layer, rate, by_sample=False):
        super().__init__()
        self.layer, self.rate, self.by_sample = layer, rate, by_sample

    def forward(self, x):
        if not self.training or self.rate == 0:
            return x
        shape = (1,) * (x.dim() - 1) if self.by_sample else x.shape[1:]
        element = torch.arange(math.prod(shape)).reshape(1, *shape)
        sample = torch.arange(len(x)).reshape(-1, *[1] * (x.dim() - 1))
        kept = (self.layer * 31 + sample * 21 + element * 17) % 64 >= 16
        return x * kept.to(x.dtype) / (1 - self.rate)


class Attention(nn.Module):
    def __init__(self, width, heads, drop, proj_drop):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_drop = drop
        self.proj = nn.Linear(width, width)
        self.proj_drop = proj_drop

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = self.attn_drop((q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1))
        return self.proj_drop(self.proj((scores @ v).transpose(1, 2).reshape(n, length, width)))


class Mlp(nn.Module):
    def __init__(self, width, drop1, drop2):
        super().__init__()
        self.fc1, self.drop1 = nn.Linear(width, 4 * width), drop1
        self.fc2, self.drop2 = nn.Linear(4 * width, width), drop2

    def forward(self, x):
        return self.drop2(self.fc2(self.drop1(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, width, heads, masks):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads, masks[0], masks[1])
        self.drop_path1 = masks[2]
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, masks[3], masks[4])
        self.drop_path2 = masks[5]

    def forward(self, x):
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self, c, patch, width):
        super().__init__()
        self.proj = nn.Conv2d(c, width, kernel_size=patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


@torch.no_grad()
def trunc_normal(tensor, std):
    """Draws as timm's trunc_normal_, cut off at +-2; newer versions of PyTorch draw in another way."""
    inside = 2 * ((1 + math.erf(2 / std / math.sqrt(2))) / 2) - 1
    tensor.uniform_(-inside, inside).erfinv_().mul_(std * math.sqrt(2)).clamp_(-2, 2)


class VisionTransformer(nn.Module):
    """A copy of timm's class, with its names and its order of random numbers."""

    def __init__(self, c, h, w, classes, patch, width, depth, heads, dropout=0.0, attention_dropout=0.0, drop_path=0.0):
        super().__init__()
        layers = 0

        def mask(rate, always=False, by_sample=False):
            nonlocal layers
            if rate == 0 and not always:
                return nn.Identity()
            layers += 1
            return Masked(layers - 1, rate, by_sample)

        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (h // patch) * (w // patch) + 1, width))
        self.patch_embed = PatchEmbed(c, patch, width)
        self.pos_drop = mask(dropout)
        blocks = []
        for i in range(depth):
            path = drop_path * i / max(depth - 1, 1)
            masks = [mask(attention_dropout, True), mask(dropout), mask(path, True, True), mask(dropout), mask(dropout),
                     mask(path, True, True)]
            blocks.append(Block(width, heads, masks))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        trunc_normal(self.pos_embed, 0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal(module.weight, 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(self.pos_drop(x)))[:, 0])


def timm_module(name, c, h, w, classes, options):
    if name != "vit":
        names = dict(patch="patch_size", width="embed_dim", depth="depth", heads="num_heads")
        options = {names[key]: value for key, value in options.items()}
        return timm.create_model(name, img_size=(h, w), in_chans=c, num_classes=classes, **options)
    return timm_vit.VisionTransformer(
        img_size=(h, w), patch_size=options["patch"], in_chans=c, num_classes=classes, embed_dim=options["width"],
        depth=options["depth"], num_heads=options["heads"])


def check_copy(c, h, w, classes, options):
    """Raises an error if the vision transformer above differs from timm's."""
    torch.manual_seed(3)
    ours = VisionTransformer(c, h, w, classes, **options)
    torch.manual_seed(3)
    theirs = timm_module("vit", c, h, w, classes, options)
    want = theirs.state_dict()
    got = ours.state_dict()
    assert list(want) == list(got), "other names than timm's"
    for name, tensor in want.items():
        assert torch.equal(tensor, got[name]), "other first values than timm's: " + name
    x = torch.randn(2, c, h, w, dtype=torch.float64)
    for net in (ours, theirs):
        net.double().eval()
        net(x).square().sum().backward()
    assert torch.allclose(ours(x), theirs(x), rtol=1e-12, atol=1e-12), "other outputs than timm's"
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        assert float((p.grad - q.grad).norm()) <= 1e-12 * float(q.grad.norm()), "other gradients than timm's: " + name


def perceptron(features, classes, width=256, depth=2):
    layers = [nn.Flatten()]
    for i in range(depth):
        layers += [nn.Linear(width if i else features, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width if depth else features, classes))


PATCH16 = {"tiny": 192, "small": 384, "base": 768}


def build(spec, c, h, w, classes, seed):
    """Returns the module, and the name of its source."""
    name, _, text = spec.partition(":")
    options = {key: float(v) if "." in v else int(v) for key, v in (p.split("=") for p in text.split(",") if p)}
    torch.manual_seed(seed)
    if name.startswith("lenet"):
        return LeNet(c, h, w, classes, name == "lenet_bn"), "the chapter's"
    if name == "resnet18_d2l":
        return d2l_resnet18(c, classes, **options), "the chapter's"
    if name == "mlp":
        return perceptron(c * h * w, classes, **options), "torch.nn.Sequential"
    if name.startswith("resnet"):
        return torchvision_resnet(int(name[-2:]), c, classes, **options), "torchvision's"
    every = {**dict(patch=7, width=64, depth=4, heads=4), **options}
    if name != "vit":
        width = PATCH16[name.split("_")[1]]
        every = {**dict(patch=16, width=width, depth=12, heads=width // 64), **options}
    if timm is None or {"dropout", "attention_dropout", "drop_path"} & set(options):
        return VisionTransformer(c, h, w, classes, **every), "a copy of timm's"
    if name == "vit":
        check_copy(c, h, w, classes, every)
        torch.manual_seed(seed)
        return timm_module(name, c, h, w, classes, every), "timm's, and the copy's"
    return timm_module(name, c, h, w, classes, options), "timm's"


def loss_of(logits, batch, part):
    log_p = F.log_softmax(logits, 1)
    labels = batch["labels"].long()[part]
    losses = -log_p.gather(1, labels[:, None])[:, 0]
    if "others" in batch:
        others = -log_p.gather(1, batch["others"].long()[part][:, None])[:, 0]
        shares = batch["shares"].double()[part]
        losses = shares * losses + (1 - shares) * others
    return losses.sum() / len(batch["labels"])


def step(net, batch, ranks):
    """Returns the batch's outputs and mean loss, its gradients, summed over the ranks, and rank 0's buffers."""
    answer, gradients, outputs, loss = {}, {}, [], 0.0
    for rank, part in enumerate(torch.chunk(torch.arange(len(batch["labels"])), ranks)):
        replica = copy.deepcopy(net)
        logits = replica(batch["images"].double()[part])
        own = loss_of(logits, batch, part)
        own.backward()
        outputs.append(logits)
        loss += float(own.detach())
        for name, p in replica.named_parameters():
            gradients[name] = gradients.get(name, 0) + p.grad
        if rank == 0:
            answer = dict(replica.named_buffers())
    answer.update(gradients, outputs=torch.cat(outputs), loss=torch.tensor([loss], dtype=torch.float64))
    return answer


@torch.no_grad()
def move_biases(net, images):
    """Moves batch norm's biases, channel by channel, so that no input of a ReLU is near zero on these images.

    The new zero lies in the middle of the widest gap between a channel's values from -0.1 to 0.1. A value that is zero up
    to rounding may be on the other side of the ReLU in float32, which changes a gradient by far more than rounding does.
    """
    replica, last = copy.deepcopy(net).double().train(), []

    def before_relu(_, inputs):
        z, norm = inputs[0], last[-1]
        for channel, values in enumerate(z.transpose(0, 1).flatten(1)):
            near = values[values.abs() < 0.1]
            near = torch.cat([near, near.new_tensor([-0.1, 0.1])]).sort()[0]
            at = int((near[1:] - near[:-1]).argmax())
            bias = (norm.bias[channel] - (near[at] + near[at + 1]) / 2).float().double()
            z[:, channel] += bias - norm.bias[channel]
            norm.bias[channel] = bias

    for module in replica.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda norm, *_: last.append(norm))
        if isinstance(module, nn.ReLU):
            module.register_forward_pre_hook(before_relu)
    replica(images.double())
    for ours, moved in zip(net.modules(), replica.modules()):
        if isinstance(ours, nn.BatchNorm2d):
            ours.bias.copy_(moved.bias)


def check_back(net, checkpoint):
    """Raises an error unless the checkpoint has these parameters, after one step at a learning rate of nearly zero."""
    own = {name: p.detach().clone() for name, p in net.named_parameters()}
    net.load_state_dict(checkpoint, strict=True)
    for name, p in net.named_parameters():
        assert float((p.detach() - own[name]).abs().max()) < 1e-36, "another value came back of " + name
    for name, buffer in net.named_buffers():
        assert buffer.dim() > 0 or int(buffer) == 1, "no step was counted in " + name


def run(folder, spec, sizes, asked, world_sizes):
    asked, _, seed = asked.partition(":")
    net, whose = build(spec, *sizes, int(seed or 3))
    print("%s %s: %s" % (os.path.basename(folder), spec, whose))
    with open(folder + "/order", "w", encoding="utf-8") as f:
        for tensors in (net.named_parameters(), net.named_buffers()):
            f.writelines("%s %s\n" % (name, "x".join(map(str, tensor.shape))) for name, tensor in tensors)
            f.write("--\n")
    if asked == "first":
        save(folder + "/first", net.state_dict())
    if asked == "back":
        check_back(net, load(folder + "/checkpoint"))
    if asked not in ("step", "own", "clear"):
        return
    if asked == "step":
        net.load_state_dict(load(folder + "/weights"), strict=True)
    if asked == "clear":
        move_biases(net, load(folder + "/batch")["images"])
    save(folder + "/saved", net.state_dict())
    if not world_sizes:
        return
    batch = load(folder + "/batch")
    net.double().eval()
    with torch.no_grad():
        evaluation = net(batch["images"].double())
    net.train()
    for ranks in world_sizes:
        save("%s/answer_%d" % (folder, ranks), {**step(net, batch, ranks), "evaluation": evaluation})


def versions():
    modules = (("torch", torch), ("torchvision", torchvision), ("timm", timm), ("safetensors", safetensors))
    return ", ".join("%s %s" % (name, module.__version__) if module else "no " + name for name, module in modules)


def main(folder):
    torch.set_num_threads(1)
    print(versions())
    with open(folder + "/cases", encoding="utf-8") as f:
        for line in f:
            name, spec, c, h, w, classes, asked, *world_sizes = line.split()
            path = os.path.join(folder, name)
            run(path, spec, (int(c), int(h), int(w), int(classes)), asked, [int(ranks) for ranks in world_sizes])


if __name__ == "__main__":
    main(sys.argv[1])
