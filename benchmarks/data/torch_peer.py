"""Loads JPEGs with torchvision, for the command `data` to time.

Each line of standard input has a way to load, an image size, the number of
files, and their folder: 00000.jpg, 00001.jpg and so on. The ways `tensor`
(torchvision.io.decode_jpeg and transforms of tensors) and `pil` (Pillow and
transforms of its images) do RandomResizedCrop, RandomHorizontalFlip and
Normalize; `decode` does only decode_jpeg. The answer is the seconds of the
load, including the reading of the files.

`compare_tensor` and `compare_pil` resize each image in these ways, and compare
the image with the file `pixels` in the folder, uint8 [count, size, size, 3].
The answer is the largest difference of a value and the share of the values that
differ.

`list` makes an ImageFolder of the folder. The answer has the seconds, and the
growth of resident memory in bytes for each file.
"""
import io
import os
import sys
import time


def answer(*words):
    print("lockstep:", *words, flush=True)


def read(folder, number):
    with open(f"{folder}/{number:05}.jpg", "rb") as file:
        return file.read()


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def list_folder(torchvision, folder):
    before = resident_bytes()
    start = time.perf_counter()
    data = torchvision.datasets.ImageFolder(folder)
    seconds = time.perf_counter() - start
    answer("listed", seconds, (resident_bytes() - before) / len(data))


def main():
    try:
        import torch
        import torchvision
        from PIL import Image
        from torchvision.io import decode_jpeg
        from torchvision.transforms import v2
    except Exception as error:  # A broken installation may raise any error.
        answer("missing", str(error).split("\n")[0])
        return
    torch.set_num_threads(1)
    answer("ready", torch.__version__, "torchvision " + torchvision.__version__)
    normalize = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    to_float = v2.ToDtype(torch.float32, scale=True)

    def decoded(data):
        return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    for line in sys.stdin:
        way, size, count, folder = line.rstrip("\n").split(" ", 3)
        if way == "list":
            list_folder(torchvision, folder)
            continue
        size = int(size)
        augment = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        tensor = v2.Compose(augment + [to_float, normalize])
        pil = v2.Compose(augment + [v2.ToImage(), to_float, normalize])
        if way.startswith("compare"):
            with open(f"{folder}/pixels", "rb") as file:
                ours = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
            resize = v2.Resize([size, size], antialias=True)
            resized = {
                "compare_tensor": lambda data: resize(decoded(data)),
                "compare_pil": lambda data: v2.functional.pil_to_tensor(
                    resize(Image.open(io.BytesIO(data)).convert("RGB")))}[way]
            theirs = torch.stack([resized(read(folder, i)) for i in range(int(count))])
            levels = (theirs.permute(0, 2, 3, 1).reshape(-1).int() - ours.int()).abs()
            answer("differ", int(levels.max()), float((levels > 0).double().mean()))
            continue
        load = {"tensor": lambda data: tensor(decoded(data)),
                "pil": lambda data: pil(Image.open(io.BytesIO(data)).convert("RGB")),
                "decode": decoded}[way]
        start = time.perf_counter()
        for i in range(int(count)):
            load(read(folder, i))
        answer("loaded", time.perf_counter() - start)


main()
