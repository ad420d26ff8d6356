"""Another build of PyTorch: `PACKAGE_INDEX` reaches the lock, the environment and the image, whose build assumes no version of CUDA."""

import subprocess
from pathlib import Path

from tests.imports import TOP

INDEX = "http://127.0.0.1:9/simple"


def test_make_hands_the_index_on() -> None:
    for words, found in (([f"PACKAGE_INDEX={INDEX}"], True), ([], False)):
        printed = subprocess.run(["make", "--dry-run", "lock", "image", *words], cwd=TOP, capture_output=True, text=True, check=True).stdout
        assert ("--upgrade-package torch --upgrade-package torchvision" in printed) == found
        assert (f"--build-arg PACKAGE_INDEX={INDEX}" in printed) == found


def test_the_image_leaves_out_the_same_libraries_of_cuda_13_and_12(tmp_path: Path) -> None:
    (command,) = [
        line.strip().removeprefix("&& ").removesuffix("\\") for line in (TOP / "Dockerfile").read_text().splitlines() if "libnvperf" in line
    ]
    kept, removed = ("libcusolver.so.11", "libcupti.so.12"), ("libcusolverMg.so.11", "libnvperf_host.so", "libpcsamplingutil.so")
    for folder in (tmp_path / "nvidia/cu13/lib", tmp_path / "nvidia/cusolver/lib"):
        folder.mkdir(parents=True)
        for name in kept + removed:
            (folder / name).touch()
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert {path.name for path in folder.iterdir()} == set(kept)
