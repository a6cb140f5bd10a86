#!/usr/bin/env python3
"""Takes steps of PyTorch's optimizers: torch_optimizers.py FOLDER

FOLDER/cases has a line for each case: name, kind (sgd or adamw), rate, momentum, weight decay, beta1, beta2, epsilon.
FOLDER/values and FOLDER/gradients are float64: the values, and the gradients of one step after the other. The values
after all steps are written to FOLDER/NAME in float64.
"""
import os
import sys

import numpy as np
import torch


def main():
    folder = sys.argv[1]
    first = np.fromfile(os.path.join(folder, "values"))
    gradients = np.fromfile(os.path.join(folder, "gradients")).reshape(-1, first.size)
    with open(os.path.join(folder, "cases"), encoding="utf-8") as lines:
        cases = [line.split() for line in lines]
    for name, kind, *numbers in cases:
        rate, momentum, decay, beta1, beta2, epsilon = map(float, numbers)
        values = torch.nn.Parameter(torch.from_numpy(first.copy()))
        if kind == "sgd":
            optimizer = torch.optim.SGD([values], lr=rate, momentum=momentum, weight_decay=decay)
        else:
            optimizer = torch.optim.AdamW([values], lr=rate, betas=(beta1, beta2), eps=epsilon, weight_decay=decay)
        for gradient in gradients:
            values.grad = torch.from_numpy(gradient.copy())
            optimizer.step()
        values.detach().numpy().tofile(os.path.join(folder, name))
    print("torch", torch.__version__)


main()
