"""Damage tensor files in every region: `python -m tests.faults.flips 10000` prints how many damages were detected, and in how many seconds."""

import random
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.core.refusal import Refusal
from pipeline.inference import tensor_file
from tests.faults.corpus.damage import flipped

TENSORS = {
    "network/weight": torch.arange(240, dtype=torch.float32).view(10, 24),
    "network/half": torch.linspace(-1, 1, 50).bfloat16(),
    "network/count": torch.tensor(7),
    "optimizer/weight/exp_avg": torch.linspace(0, 1, 240).view(10, 24),
    "sums/loss": torch.tensor(0.25, dtype=torch.float64),
    "best/weight": torch.ones(10, 24),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.zeros(0),
}
METADATA = {
    "state": {"step": 812, "scaler": {"scale": 65536.0, "growth": 3}},
    "progress": {"rows": [{"step": step, "train/objective": 1 / (step + 1)} for step in range(12)], "best_value": None, "stale": 0},
    "name": "Zoë",
}


@dataclass(frozen=True)
class Region:
    """A range of bytes of a file, named after its content."""

    name: str
    start: int
    end: int


def regions(content: bytes) -> list[Region]:
    """Return the length of the header, the metadata, the rest of the header, parts of the data, and the end."""
    length = struct.unpack("<Q", content[:8])[0]
    metadata = content.index(b'"{') if b'"{' in content[8 : 8 + length] else 8
    inner = content.index(b'"}', metadata) + 2
    found = [
        Region("length", 0, 8),
        Region("metadata", metadata, inner),
        Region("header", 8, metadata),
        Region("header", inner, 8 + length),
    ]
    step = (len(content) - 8 - length) // 16
    found += [Region("data", start, start + step) for start in range(8 + length, len(content) - step, step)]
    return [region for region in [*found, Region("end", len(content) - 8, len(content))] if region.end > region.start]


def damages(content: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents with a description: one flipped bit in each region in turn, every fourth time a truncation."""
    draw = random.Random(seed)
    places = regions(content)
    for number in range(count):
        region = places[number % len(places)]
        cursor = draw.randrange(region.start, region.end)
        if number // len(places) % 4 == 3:
            yield f"cut at {cursor} ({region.name})", content[:cursor]
        else:
            bit = draw.randrange(8)
            yield f"bit {bit} of byte {cursor} ({region.name})", flipped(content, cursor, bit)


def missed(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Return the damages that were not detected."""
    path = folder / "step-000000000812.safetensors"
    tensor_file.save(path, TENSORS, METADATA)
    found = []
    for name, content in damages(path.read_bytes(), count, seed):
        path.write_bytes(content)
        try:
            tensor_file.load(path)
        except Refusal:
            continue
        found.append(name)
    return found


def main(count: int) -> int:
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        left = missed(Path(folder), count)
    elapsed_s = time.perf_counter() - started_s
    print(
        f"{count - len(left)} of {count} flips and truncations found in {elapsed_s:.1f} s" + "".join(f"\nmissed: {name}" for name in left)
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
