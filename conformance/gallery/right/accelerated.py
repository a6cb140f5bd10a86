"""Image classification with Hugging Face Accelerate, as its examples do it. Needs accelerate 1.0.

Run: accelerate launch accelerated.py, or torchrun --nproc_per_node=2 accelerated.py"""
import argparse
import importlib.util
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

if importlib.util.find_spec("accelerate") is None:
    print("accelerated.py needs the package accelerate", file=sys.stderr)
    sys.exit(77)

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed


def get_datasets():
    """A bright square in one of four quarters of a noisy image."""
    generator = torch.Generator().manual_seed(12)
    labels = torch.randint(4, (410,), generator=generator)
    images = 0.7 * torch.randn(410, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist()):
        row, column = divmod(label, 2)
        image[0, 4 * row + 1 : 4 * row + 3, 4 * column + 1 : 4 * column + 3] += 1.5
    return TensorDataset(images[:320], labels[:320]), TensorDataset(images[320:], labels[320:])


def training_function(args):
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accumulation_steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(42)
    train_dataset, eval_dataset = get_datasets()
    train_loader = DataLoader(train_dataset, shuffle=True, batch_size=args.batch_size)
    eval_loader = DataLoader(eval_dataset, shuffle=False, batch_size=args.batch_size)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # The prepared schedule steps num_processes times in each update.
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.1, total_iters=10 * accelerator.num_processes
    )
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        correct = total = 0
        for images, labels in eval_loader:
            with torch.no_grad():
                predictions = model(images).argmax(1)
            predictions, labels = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == labels).sum().item()
            total += len(labels)
        accelerator.print(f"epoch {epoch} loss {loss.item():.3f} accuracy {correct / total:.3f}")
    if args.save:
        weights = accelerator.unwrap_model(model).state_dict()
        torch.save(weights, f"{args.save}.{accelerator.process_index}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation-steps", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--save")
    training_function(parser.parse_args())
