"""Another build of PyTorch: `PACKAGE_INDEX` reaches the lock, the environment and the image, whose build assumes no version of CUDA."""

import subprocess
from pathlib import Path

import pytest

from tests.imports import TOP

INDEX = "http://127.0.0.1:9/simple"


@pytest.mark.parametrize(
    ("target", "expected"),
    [("lock", "--upgrade-package torch --upgrade-package torchvision"), ("image", f"--build-arg PACKAGE_INDEX={INDEX}")],
)
def test_make_hands_the_index_on(target: str, expected: str) -> None:
    for words, found in (([f"PACKAGE_INDEX={INDEX}"], True), ([], False)):
        printed = subprocess.run(["make", "--dry-run", target, *words], cwd=TOP, capture_output=True, text=True, check=True).stdout
        assert (expected in printed) == found


@pytest.mark.parametrize("folder", ["nvidia/cu13/lib", "nvidia/cusolver/lib"], ids=["CUDA 13", "CUDA 12"])
def test_the_image_leaves_out_the_same_libraries_of_every_cuda(folder: str, tmp_path: Path) -> None:
    (command,) = [
        line.strip().removeprefix("&& ").removesuffix("\\") for line in (TOP / "Dockerfile").read_text().splitlines() if "libnvperf" in line
    ]
    kept, removed = ("libcusolver.so.11", "libcupti.so.12"), ("libcusolverMg.so.11", "libnvperf_host.so", "libpcsamplingutil.so")
    (tmp_path / folder).mkdir(parents=True)
    for name in kept + removed:
        (tmp_path / folder / name).touch()
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert {path.name for path in (tmp_path / folder).iterdir()} == set(kept)
