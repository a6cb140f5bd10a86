"""PyTorch's DistributedSampler, for the command `sampler` to time.

Each line of standard input says what to draw, by five numbers: dataset_size,
num_replicas, rank, seed, epoch. The answer says how many seconds it took to
iterate over the sampler, until its indices were an array of 64-bit integers;
how many they are; and the array's CRC-32.
"""
import array
import sys
import time
import zlib


def answer(*words):
    print("lockstep:", *words, flush=True)


def draw(sampler_class, line):
    size, replicas, rank, seed, epoch = map(int, line.split())
    sampler = sampler_class(range(size), num_replicas=replicas, rank=rank, seed=seed)
    sampler.set_epoch(epoch)
    start = time.perf_counter()
    indices = array.array("q", sampler)
    seconds = time.perf_counter() - start
    answer("drew", seconds, len(indices), zlib.crc32(indices))


def main():
    try:
        import torch
        from torch.utils.data.distributed import DistributedSampler
    except Exception as error:  # Whatever a broken installation raises.
        answer("missing", str(error).split("\n")[0])
        return
    torch.set_num_threads(1)
    answer("ready", torch.__version__)
    for line in sys.stdin:
        draw(DistributedSampler, line)


main()
