"""Writes golden_images.txt: small JPEG and PNG files, with Pillow's pixels.

Run it with the distribution's Python, whose Pillow decodes with the libjpeg and
libpng that we link: /usr/bin/python3 make_golden_images.py

Each line has a name, height, width, channels, the CRC-32 of the pixels as
decoded, as RGB (convert("RGB")) and as grey (convert("L")), and the file in base
64.
"""
import base64
import io
import os
import random
import struct
import zlib

from PIL import Image, ImageOps

HEIGHT, WIDTH = 11, 19  # Not multiples of a block of pixels.


def noisy(mode):
    """Returns a gradient with noise, which any blur or shift changes."""
    draw = random.Random(mode)
    bands = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, (WIDTH, HEIGHT), bytes(
        (12 * x * (c + 1) + 20 * y * (3 - c) + draw.randrange(40)) % 256
        for y in range(HEIGHT) for x in range(WIDTH) for c in range(bands)))


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def jpeg(image, **options):
    return saved(image, format="JPEG", **options)


def oriented(value, endian):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x010F] = "maker"  # A tag before the orientation.
    exif[0x0112] = value
    return jpeg(noisy("L"), quality=60, exif=exif.tobytes())


def png(depth, colour, rows, *chunks, adam7=False):
    """Returns a PNG file; rows is a function from (y, x) to a pixel's samples."""
    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(
            ">I", zlib.crc32(body))
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4),
              (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if adam7 else [
                  (0, 0, 1, 1)]
    data = b""
    for x0, y0, dx, dy in passes:
        for y in range(y0, HEIGHT, dy):
            bits = "".join(format(sample, f"0{depth}b")
                           for x in range(x0, WIDTH, dx)
                           for sample in rows(y, x))
            if bits:
                bits += "0" * (-len(bits) % 8)
                data += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour,
                                       0, 0, int(adam7))) +
            b"".join(chunk(*c) for c in chunks) +
            chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def files():
    colour, grey = noisy("RGB"), noisy("L")
    yield "jpeg_420", jpeg(colour, quality=90)
    yield "jpeg_422", jpeg(colour, quality=90, subsampling=1)
    yield "jpeg_444", jpeg(colour, quality=75, subsampling=0)
    yield "jpeg_progressive", jpeg(colour, progressive=True)
    yield "jpeg_grey", jpeg(grey)
    cmyk = jpeg(noisy("CMYK"))
    adobe = cmyk.index(b"Adobe")
    assert cmyk[adobe + 11] == 0  # The transform in the marker: none.
    yield "jpeg_cmyk", cmyk
    yield "jpeg_ycck", cmyk[:adobe + 11] + b"\2" + cmyk[adobe + 12:]
    large = colour.resize((75, 60), Image.BICUBIC)  # Several rows of blocks.
    yield "jpeg_420_large", jpeg(large, quality=50)
    yield "jpeg_422_large", jpeg(large, quality=50, subsampling=1)
    yield "jpeg_progressive_large", jpeg(large, quality=50, progressive=True)
    yield "jpeg_1x1", jpeg(colour.crop((5, 5, 6, 6)))
    for value in range(1, 9):
        yield f"jpeg_orientation_{value}", oriented(value, "<>"[value % 2])
    yield "jpeg_orientation_9", oriented(9, "<")
    yield "png_rgb", saved(colour, format="PNG")
    yield "png_rgba", saved(noisy("RGBA"), format="PNG")
    yield "png_grey", saved(grey, format="PNG")
    yield "png_grey_alpha", saved(noisy("LA"), format="PNG")
    palette = (b"PLTE", bytes(range(0, 240, 5)))  # 16 colours.
    transparent = (b"tRNS", bytes([0, 128, 255]))
    yield "png_palette_4", png(4, 3, lambda y, x: [(x + y) % 16], palette)
    yield "png_palette_8_alpha", png(8, 3, lambda y, x: [(x * y) % 16], palette,
                                     transparent)
    yield "png_grey_1", png(1, 0, lambda y, x: [(x ^ y) & 1])
    yield "png_grey_2", png(2, 0, lambda y, x: [(x + y) & 3])
    yield "png_grey_4", png(4, 0, lambda y, x: [(x * y) & 15])
    yield "png_grey_16", png(16, 0, lambda y, x: [(3000 * x + 255 * y) % 65536])
    yield "png_rgb_16", png(16, 2, lambda y, x: [3000 * x, 4000 * y, 250 * x])
    yield "png_rgb_adam7", png(8, 2, lambda y, x: [13 * x, 20 * y, x * y],
                               adam7=True)
    yield "png_grey_4_adam7", png(4, 0, lambda y, x: [(x * y) & 15], adam7=True)


def decoded(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I"):  # 16 bits, which convert("L") would clip.
        return Image.frombytes("L", image.size,
                               bytes(v >> 8 for v in image.getdata()))
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "golden_images.txt")
    with open(path, "w", encoding="ascii") as out:
        for name, data in files():
            image = decoded(data)
            print(name, image.height, image.width, len(image.getbands()),
                  *(zlib.crc32(i.tobytes()) for i in
                    (image, image.convert("RGB"), image.convert("L"))),
                  base64.b64encode(data).decode(), file=out)


if __name__ == "__main__":
    main()
