"""Brings the files of a pretrained model into `data/weights/`: from another folder, or from the hub of Hugging Face."""

import glob
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core import files, interruption, untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.inference.params import NO_WEIGHTS, PICKLES, WEIGHTS_FOLDER

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
TIMEOUT_S = 10.0
LOCK = Path(".pipeline/weights.lock")

Values = dict[str, Any]
"""Values of parameters by their keys."""
Describe = Callable[[Path, Path], Values]
"""Maps the folder of a model, and the draft of this folder that has the files now, to the parameters. Raises Refusal for an unusable model."""


def placed(folder: Path, revision: str | None, describe: Describe) -> tuple[Path, Values]:
    """Return the folder of `data/weights/` with the model of `folder`, to which it is copied, and its parameters."""
    if revision is not None:
        raise Refusal(f"model={folder}@{revision}: a folder has no revisions: leave out what follows the `@`")
    if folder.absolute().parent == WEIGHTS_FOLDER.absolute():
        return WEIGHTS_FOLDER / folder.name, describe(WEIGHTS_FOLDER / folder.name, folder)
    target = usable(folder.resolve().name)
    refuse_without_safetensors([path.name for path in folder.iterdir()], str(folder))
    names = [path.name for path in folder.iterdir() if wanted(path.name)]
    values = describe(target, folder)
    if target.exists():
        if all((target / name).exists() and files.digest(target / name) == files.digest(folder / name) for name in names):
            return target, values
        raise Refusal(f"{target}: exists already with other files than {folder}: write model=...:{target}, or move one of the two away")
    print(f"set: copying {folder} ({megabytes(sum((folder / name).stat().st_size for name in names))}) to {target}")
    with interruption.raise_on_signal(), draft_of(target) as draft:
        for name in names:
            shutil.copyfile(folder / name, draft / name)
    return target, values


def fetched(repository: str, revision: str | None, describe: Describe) -> tuple[Path, Values]:
    """Return the folder of `data/weights/` with the model `repository` of the hub, which is downloaded unless it exists, and its parameters.

    Another owner or revision has another folder. The digest of each file is compared with that of the hub. Raises Unavailable if the hub
    does not answer as a hub, and Refusal for any other fault.
    """
    owner, _, name = repository.rpartition("/")
    target = usable((name if owner in ("", "timm") else f"{owner}_{name}") + (f"@{revision}" if revision else ""))
    if target.exists():
        print(f"set: {target} exists, so nothing is downloaded")
        return target, describe(target, target)
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        with interruption.raise_on_signal(), draft_of(target) as draft:
            found = hub.HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
            siblings = found.siblings or []
            refuse_without_safetensors([entry.rfilename for entry in siblings], repository)
            entries = [entry for entry in siblings if wanted(entry.rfilename)]
            total = megabytes(sum(entry.size or 0 for entry in entries))
            print(f"set: downloading {repository} at {found.sha} ({total}) to {target}", flush=True)

            def bring(*, weights: bool) -> None:
                for entry in [entry for entry in entries if bool(WEIGHTS.fullmatch(entry.rfilename)) == weights]:
                    path = hub.hf_hub_download(repository, entry.rfilename, revision=found.sha, local_dir=draft, etag_timeout=TIMEOUT_S)
                    refuse_other_bytes(Path(path), entry)

            bring(weights=False)  # config.json and the tokenizer first: gigabytes are not downloaded in vain
            values = describe(target, draft)
            bring(weights=True)
            shutil.rmtree(draft / ".cache", ignore_errors=True)
    except Refusal:
        raise
    # one that is private is not found, too
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        reason = untrusted.reason(error)
        raise Refusal(f"model={repository}: the hub does not have it ({reason}): correct the name or the revision") from None
    # HTTPError is that of httpx2, for a hub that does not answer; the others are for an answer that is not that of a hub
    except (errors.HTTPError, OSError, TypeError, KeyError, ValueError, AttributeError) as error:  # type: ignore[attr-defined]
        problem = f"cannot be downloaded ({untrusted.reason(error)})"
        raise Unavailable(f"model={repository}: {problem}: try again, or copy the model to {target}") from None
    return target, values


def usable(name: str) -> Path:
    """Return the folder of weights with this name. Raises Refusal if a training could not name it."""
    if name in ("", "..", NO_WEIGHTS) or Path(name).suffix in PICKLES:
        raise Refusal(f"{name or 'the name'}: cannot be the name of a folder in {WEIGHTS_FOLDER}/: rename it")
    return WEIGHTS_FOLDER / name


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """Yield a folder beside `target`, which at the end is renamed to `target`, or removed after an exception. First remove those that killed
    commands left.

    Raises Unavailable if another command of this checkout has such a folder.
    """
    with files.locked(LOCK, wait=False) as taken:
        if not taken:
            raise Unavailable(f"{target}: another `set` is fetching a model: try again when it has ended")
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{glob.escape(target.name)}.draft*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.draft", dir=target.parent, ignore_cleanup_errors=True) as draft:
            yield Path(draft)
            # only its owner can read it, but `target` should have the access rights of the folder around it
            Path(draft).chmod(target.parent.stat().st_mode & 0o777)
            Path(draft).rename(target)


def refuse_other_bytes(path: Path, entry: Any) -> None:
    """Raise Refusal if the file does not have the size and the digest that the hub says: SHA-256 for large files, that of Git for others."""
    if entry.lfs:
        same = files.digest(path) == entry.lfs.sha256
    else:
        content = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        same = entry.blob_id in (None, blob)
    if not same or (entry.size is not None and path.stat().st_size != entry.size):
        problem = f"{entry.rfilename} has other bytes than the hub says (digest or size)"
        raise Refusal(f"model.weights: {problem}: try again, or use another source of the model")


def refuse_without_safetensors(names: list[str], place: str) -> None:
    """Raise Refusal if none of the files `names` has weights as safetensors. `place` begins the message."""
    if not any(map(WEIGHTS.fullmatch, names)):
        problem = "has no weights as safetensors: pickled weights can run any code when they are read"
        raise Refusal(f"{place}: {problem}: choose another revision, or convert them, as docs/fine-tuning.md shows")


def wanted(name: str) -> bool:
    return name in (CONFIG, TOKENIZER) or bool(WEIGHTS.fullmatch(name))


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
