#!/usr/bin/env python3
"""Writes torchvision_golden.txt from the newest torchvision and Pillow.

  torchvision_goldens.py > torchvision_golden.txt

Each line has a name, numbers, and bytes in hexadecimal, which are an image of
[height, width, channels]. Inputs are not written: byte i of an input is the
uppermost byte of SplitMix64's finaliser of i + 1.
"""
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

MODES = {"bilinear": v2.InterpolationMode.BILINEAR, "bicubic": v2.InterpolationMode.BICUBIC}
# Channels, height and width of an image, then height and width of the result. The sizes grow, shrink, are odd, have one
# pixel, change only one side, and change by a large factor.
SIZES = ((3, 23, 37, 9, 14), (3, 9, 14, 23, 37), (3, 1, 1, 5, 3), (3, 5, 3, 1, 1), (3, 7, 16, 7, 5), (3, 16, 7, 5, 7),
         (1, 28, 28, 13, 17), (1, 11, 12, 28, 28), (3, 64, 61, 17, 19), (3, 90, 5, 2, 31), (3, 2, 2, 3, 2),
         (3, 33, 47, 16, 16), (1, 3, 70, 2, 1), (3, 40, 50, 39, 51))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def image(channels, height, width):
    values = [mix(i + 1) >> 56 for i in range(height * width * channels)]
    return torch.tensor(values, dtype=torch.uint8).reshape(height, width, channels).permute(2, 0, 1)


def show(pixels):
    return bytes(pixels.permute(1, 2, 0).flatten().tolist()).hex()


def pillow_resize(pixels, height, width, mode):
    pixels = pixels.permute(1, 2, 0).squeeze(2).numpy()
    return Image.fromarray(pixels).resize((width, height), Image.Resampling[mode.upper()]).tobytes().hex()


def main():
    for mode, interpolation in MODES.items():
        for c, h, w, to_h, to_w in SIZES:
            out = F.resize(image(c, h, w), [to_h, to_w], interpolation=interpolation, antialias=True)
            print("resize", mode, c, h, w, to_h, to_w, show(out))
        for c, h, w, shorter, crop in ((3, 20, 31, 12, 9), (3, 31, 20, 12, 10), (3, 9, 14, 17, 16), (1, 6, 8, 5, 7)):
            out = F.resize(image(c, h, w), [shorter], interpolation=interpolation, antialias=True)
            print("shorter", mode, c, h, w, shorter, crop, show(F.center_crop(out, [crop, crop])))
    for name, adjust in (("brightness", F.adjust_brightness), ("contrast", F.adjust_contrast),
                         ("saturation", F.adjust_saturation), ("hue", F.adjust_hue)):
        for factor in ((0.1, -0.3, 0.5) if name == "hue" else (0.0, 0.6, 1.7)):
            for c in (1, 3):
                print("color", name, factor, c, 9, 11, show(adjust(image(c, 9, 11), factor)))
    values = F.normalize(image(3, 4, 5).to(torch.float32) / 255, MEAN, STD)
    print("normalize", 4, 5, " ".join(float(v).hex() for v in values.permute(1, 2, 0).flatten().tolist()))
    for mode in MODES:
        for c, h, w, to_h, to_w in SIZES:
            print("pillow", mode, c, h, w, to_h, to_w, pillow_resize(image(c, h, w), to_h, to_w, mode))


main()
