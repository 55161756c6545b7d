"""2,000 JPEG files about as large as ImageNet's (500x375 on average, 4:2:0, quality 90), in ten classes: write_pictures.py FOLDER COUNT

And COUNT-independent FOLDER/images.u8: 20,000 images of 28x28 bytes, one behind the other.
"""
import pathlib
import sys

import numpy
from PIL import Image

folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
random = numpy.random.default_rng(1)
for i in range(count):
    width, height = int(random.integers(400, 600)), int(random.integers(300, 450))
    # Edges and textures at several scales, as photographs have: what is small is drawn large and laid over each other.
    picture = numpy.zeros((height, width, 3))
    for cells, weight in ((4, 90), (16, 50), (64, 30), (256, 14)):
        part = random.normal(0, 1, (cells * height // width + 1, cells, 3)).astype(numpy.float32)
        layers = [numpy.asarray(Image.fromarray(part[:, :, c]).resize((width, height), Image.Resampling.BICUBIC)) for c in range(3)]
        picture += weight * numpy.stack(layers, -1)
    label = folder / "train" / f"class{i % 10}"
    label.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.clip(picture + 128, 0, 255).astype(numpy.uint8)).save(label / f"{i:04}.jpg", quality=90)
random.integers(0, 256, (20_000, 28, 28), dtype=numpy.uint8).tofile(folder / "images.u8")
