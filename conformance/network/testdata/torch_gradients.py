#!/usr/bin/env python3
"""What //models:gradients is asked, and what PyTorch answers: torch_gradients.py FOLDER RANKS...

Writes to FOLDER, as safetensors: weights and batch, a state_dict and a batch as a user of PyTorch has them; and for each
number of ranks, say 4, torch_4: the gradients, buffers and loss of one training step in float64 on ranks that normalise
each its own block of the batch, blocks as torch.chunk cuts them. With synchronised batch norm torch_1 is the answer for
any number of ranks.
"""
import copy
import json
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

import make_resnet_golden

NAMES = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64", np.dtype(np.int64): "I64"}
SAMPLES = 5


def save(path, tensors):
    """The format: the header's length, the header in JSON, the bytes."""
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


def batch():
    draws = make_resnet_golden.Draws(9)
    pixels = (draws.raw(SAMPLES * 28 * 28) >> np.uint64(24)).astype(np.float32) / np.float32(255)
    labels = (draws.raw(SAMPLES) % np.uint64(10)).astype(np.int64)
    return torch.from_numpy(pixels).reshape(SAMPLES, 1, 28, 28), torch.from_numpy(labels)


def step(net, x, y, ranks):
    """The mean loss over the batch; its gradients, summed over the ranks; rank 0's buffers."""
    loss, answer, gradients = 0.0, {}, {}
    for rank, (images, labels) in enumerate(zip(torch.chunk(x.double(), ranks), torch.chunk(y, ranks))):
        replica = copy.deepcopy(net)
        part = F.cross_entropy(replica(images), labels, reduction="sum") / len(y)
        part.backward()
        loss += float(part.detach())
        for name, p in replica.named_parameters():
            gradients[name] = gradients.get(name, 0) + p.grad
        if rank == 0:
            answer = dict(replica.named_buffers())
    answer.update(gradients)
    answer["loss"] = torch.tensor([loss], dtype=torch.float64)
    return answer


def main(folder, world_sizes):
    torch.set_num_threads(1)
    net = make_resnet_golden.resnet18()
    make_resnet_golden.fill_parameters(net, 1)
    make_resnet_golden.fill_running(net, 1)
    net.float()
    save(folder + "/weights", net.state_dict())
    x, y = batch()
    save(folder + "/batch", {"images": x, "labels": y})
    net.double().train()
    for ranks in world_sizes:
        save(f"{folder}/torch_{ranks}", step(net, x, y, ranks))


if __name__ == "__main__":
    main(sys.argv[1], [int(ranks) for ranks in sys.argv[2:]])
