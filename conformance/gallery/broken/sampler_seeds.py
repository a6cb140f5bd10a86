# Denoising network, data parallel over all processes.
# torchrun --nproc_per_node=2 sampler_seeds.py --batch-size 16
import argparse
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save")
opt = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(opt.seed)


class Denoiser(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Conv1d(1, width, 5, padding=2)
        self.mid = nn.Conv1d(width, width, 5, padding=2)
        self.up = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, x):
        y = F.silu(self.down(x))
        y = y + F.silu(self.mid(y))
        return x + self.up(y)


def steps(count, length=40):
    """Piecewise constant signals, and the same with noise."""
    g = torch.Generator().manual_seed(17)
    jumps = torch.randn(count, 1, length, generator=g)
    jumps *= torch.rand(count, 1, length, generator=g) < 0.1
    clean = jumps.cumsum(2)
    return TensorDataset(clean + 0.3 * torch.randn(clean.shape, generator=g), clean)


data = steps(320)
sampler = DistributedSampler(data, shuffle=True, seed=opt.seed + 1000 * rank, drop_last=True)
loader = DataLoader(data, opt.batch_size, sampler=sampler, drop_last=True)
net = DistributedDataParallel(Denoiser())
optimizer = torch.optim.Adam(net.parameters(), lr=opt.lr)

for epoch in range(opt.epochs):
    sampler.set_epoch(epoch)
    for noisy, clean in loader:
        loss = F.l1_loss(net(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("epoch %d loss %.4f" % (epoch, loss.item()))

if opt.save:
    torch.save(net.module.state_dict(), "%s.%d" % (opt.save, rank))
dist.destroy_process_group()
