#!/usr/bin/env python3
"""Writes quant-fixture.bin beside this script: each tensor type as an independent encoder (PyPI `gguf` and numpy) stores it,
and the values that it reads back. Types that it can quantise hold normal numbers; the K-quants, which it can only
read, hold random blocks. Run once: `pip install gguf numpy && python3 quant_fixture.py`; the file is committed."""
from pathlib import Path

import gguf
import numpy as np

ROWS, COLUMNS = 5, 256
random = np.random.default_rng(7)


def random_blocks(kind):
    size, length = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS, COLUMNS // size, length), dtype=np.uint8)
    halves = {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[kind.name]
    for at in halves:
        scale = random.uniform(-0.02, 0.02, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def main():
    writer = gguf.GGUFWriter(Path(__file__).with_name("quant-fixture.bin"), "quantisation-fixture")
    for name in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]:
        kind = gguf.GGMLQuantizationType[name]
        if name.endswith("K"):
            data = random_blocks(kind)
        else:
            data = gguf.quants.quantize(random.normal(size=(ROWS, COLUMNS)).astype(np.float32), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        writer.add_tensor(name + ".expected", gguf.quants.dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
