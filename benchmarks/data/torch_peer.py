"""torchvision's loading of JPEGs, for the command `data` to time.

Each line of standard input is a way to load, an image size, and a folder with
the files 0.jpg, 1.jpg and so on, as many as a last number says. The ways:
`tensor` (torchvision.io.decode_jpeg and transforms of tensors), `pil` (Pillow
and transforms of its images), both RandomResizedCrop, RandomHorizontalFlip and
Normalize; `decode`, decode_jpeg alone; `plain`, resized and scaled only. The
answer is the seconds that it took, the files' reading included, and the mean of
all values, which `plain` alone is asked for.
"""
import io
import sys
import time


def answer(*words):
    print("lockstep:", *words, flush=True)


def main():
    try:
        import torch
        import torchvision
        from PIL import Image
        from torchvision.io import decode_jpeg
        from torchvision.transforms import v2
    except Exception as error:  # Whatever a broken installation raises.
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
        size = int(size)
        augment = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
        tensor = v2.Compose(augment + [to_float, normalize])
        pil = v2.Compose(augment + [v2.ToImage(), to_float, normalize])
        plain = v2.Compose([v2.Resize([size, size], antialias=True), to_float])
        load = {"tensor": lambda data: tensor(decoded(data)),
                "pil": lambda data: pil(Image.open(io.BytesIO(data)).convert("RGB")),
                "decode": decoded,
                "plain": lambda data: plain(decoded(data))}[way]
        total = 0.0
        start = time.perf_counter()
        for i in range(int(count)):
            with open(f"{folder}/{i}.jpg", "rb") as file:
                values = load(file.read())
            if way == "plain":
                total += float(values.mean(dtype=torch.float64))
        answer("loaded", time.perf_counter() - start, total / int(count))


main()
