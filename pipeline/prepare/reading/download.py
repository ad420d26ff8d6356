"""Downloads files atomically and verifies their checksum."""

import hashlib
import http.client
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from pipeline.core import files
from pipeline.core.refusal import Unavailable
from pipeline.prepare.progress import progress

BLOCK_BYTES = 1 << 16
MEGABYTE = 1_000_000
TIMEOUT_S = 30.0
MAX_BYTES = 2**30
"""Upper bound for a download, so that an endless response does not fill the disk. Each supported dataset has less than a fifth of it."""


def fetch(path: Path, addresses: Sequence[str], *, md5: str, remedy: str) -> None:
    """Download a file to `path` from the first of `addresses` that works. `md5` is the published checksum of the file, in hexadecimal.

    If no address works, raises Unavailable with the error of each address and then `remedy`, which says what the user can do.
    """
    errors = []
    for address in addresses:
        try:
            with files.replacing(path) as draft:
                receive(address, draft, md5=md5, label=path.name)
        except (OSError, ValueError, http.client.HTTPException) as error:
            errors.append(f"{address}: {error}")
        else:
            return
    raise Unavailable(f"source.root: {path.name} could not be downloaded ({'; '.join(errors)}): {remedy}")


def receive(address: str, draft: Path, *, md5: str, label: str) -> None:
    """Download the file at `address` to the temporary path `draft`, with a progress bar named `label`. `md5` is the expected checksum.

    Raises ValueError if the address is not an http or https URL, if the file has more than MAX_BYTES bytes, or if its MD5 is not `md5`.
    Raises OSError or HTTPException if the transfer fails.
    """
    if not address.startswith(("https://", "http://")):
        raise ValueError("is not an http or https URL")
    state = hashlib.md5(usedforsecurity=False)
    print(f"downloading {address}", flush=True)
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response, draft.open("wb") as file:  # noqa: S310  # checked above
        size_bytes = int(response.headers.get("Content-Length") or 0)
        with progress(label, -(-size_bytes // MEGABYTE), "MB") as advance:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                state.update(block)
                if file.tell() > MAX_BYTES:
                    raise ValueError(f"has more than {MAX_BYTES} bytes")
                advance(file.tell() // MEGABYTE - advance.done)
    if state.hexdigest() != md5:
        raise ValueError(f"has MD5 {state.hexdigest()}, not the published {md5}")
