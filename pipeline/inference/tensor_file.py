"""Files of tensors and JSON metadata in the safetensors format. They are written atomically, verified by a digest, and contain no pickle.

Model files and checkpoints are such files.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal

Tensors = dict[str, Tensor]
OS_ERROR = re.compile(r"os error (\d+)")
HEADER_BYTES = 100_000_000
"""The largest header that safetensors accepts."""
MOST_TENSORS = 50_000
KEY = "pipeline"
"""The only metadata key: safetensors writes several keys in random order, which would change the bytes of the file."""
RESTORE = "copy or download it again; if a stage writes it, run `dvc repro`"


class Damaged(Refusal):
    """Raised if a file can be read, but its contents do not match the digest that is stored in it.

    `claimed` is the stored digest. `found` is the digest of the actual contents.
    """

    def __init__(self, path: Path, *, claimed: object, found: str) -> None:
        super().__init__(f"{path}: is damaged: its contents do not match its digest: {RESTORE}")
        self.claimed, self.found = str(claimed), found


def save(path: Path, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
    """Write a tensor file atomically; equal inputs give equal bytes.

    `metadata` is stored as canonical JSON, together with a digest of the tensors and the metadata.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in unshared(tensors).items()}
    with_digest = {**metadata, "digest": digest(stored, metadata)}
    with files.replacing(path) as draft:
        draft.touch()  # creates the file with the mode of the umask; safetensors would set 0600
        mode = draft.stat().st_mode
        try:
            save_file(stored, draft, metadata={KEY: files.canonical(with_digest)})
        except SafetensorError as error:
            if match := OS_ERROR.search(str(error)):  # such as a full disk: it has the error number only in its message
                raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
            raise
        draft.chmod(mode)


def unshared(tensors: Tensors) -> Tensors:
    """Return `tensors`, but replace each tensor that shares memory with an earlier one, as tied weights do, by a copy.

    Safetensors refuses to save tensors that share memory.
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return found


def load(path: Path, *, header_bytes: int = HEADER_BYTES) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors of a tensor file, on the CPU, and its metadata, without the digest.

    Raises Refusal if the file is missing, cannot be read, was not written by this pipeline, or has a header of more than `header_bytes`
    bytes. Raises Damaged, which is a Refusal, if the contents do not match the stored digest.
    """
    with refusing(path):
        refuse_header(path, header_bytes)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})[KEY]
            if header_bytes < HEADER_BYTES:  # not for a checkpoint, which this pipeline wrote: it has a row for each report
                untrusted.refuse_crowded(text.encode())
            metadata = json.loads(text)
            claimed = metadata.pop("digest")
            tensors = read_all(file)
        found = digest(tensors, metadata)
    if claimed != found:
        raise Damaged(path, claimed=claimed, found=found)
    return tensors, metadata


def load_foreign(path: Path, *, header_bytes: int) -> Tensors | None:
    """Return the tensors of a safetensors file that another program wrote, on the CPU; None if this pipeline wrote the file.

    Raises Refusal if the file is missing, cannot be read, or has a header of more than `header_bytes` bytes.
    """
    with refusing(path):
        refuse_header(path, header_bytes)
        with safe_open(path, framework="pt") as file:
            return None if KEY in (file.metadata() or {}) else read_all(file)


def read_all(file: Any) -> Tensors:
    """Return all tensors of an open safetensors file."""
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # an open file cannot be iterated over


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Context manager for code that reads the file at `path`: turn an error in this code into a Refusal that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: run `dvc repro`") from None
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
        raise Refusal(f"{path}: was not written by this pipeline: its metadata has no key `{KEY}`") from None
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # RecursionError is a RuntimeError
        raise Refusal(f"{path}: is not a complete safetensors file ({untrusted.reason(error)}): {RESTORE}") from None


def refuse_header(path: Path, max_bytes: int) -> None:
    """Raise ValueError if the header has more than `max_bytes` bytes or MOST_TENSORS tensors, and OSError if `path` is not a regular file.

    The header is not parsed: this would create an object for every tensor that it lists.
    """
    untrusted.size_bytes(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > max_bytes:
            raise ValueError(f"declares a header of {length} bytes, more than {max_bytes}")
        if max_bytes < HEADER_BYTES and file.read(length).count(b'"data_offsets"') > MOST_TENSORS:
            raise ValueError(f"declares more than {MOST_TENSORS} tensors")


def digest(tensors: Tensors, metadata: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the metadata and of each tensor's name, dtype, shape and bytes, in hexadecimal."""
    state = hashlib.sha256(files.canonical(metadata).encode())
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        state.update(tensor.flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()
