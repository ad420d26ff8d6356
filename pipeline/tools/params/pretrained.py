"""`set model=timm:NAME` and `set model=transformers:NAME`: fetches a pretrained model, and finds the parameters that fine-tune it."""

import glob
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core import files, interruption, untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.registry import MODELS, SOURCES
from pipeline.inference.params import NO_WEIGHTS, PICKLES, WEIGHTS_FOLDER
from pipeline.prepare.reading import tokenizer_json
from pipeline.tools.params.commented_yaml import on_one_line

GIVEN = re.compile(r"model=(timm|transformers):(.+?)(?:@([^@/]+))?")
"""`model=LIBRARY:NAME` or `model=LIBRARY:NAME@REVISION`. NAME is a repository of the hub, the name of weights in timm, or a folder."""
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
CONFIG_BYTES = 2**20
TIMEOUT_S = 10.0
LONGEST = 512
"""The largest recommended number of tokens of a text."""
FINE_TUNING = {
    "optimizer": "adamw",
    "optimizer.weight_decay": 0.05,
    "optimizer.beta2": 0.999,
    "schedule": "one_cycle",
    "schedule.warmup_ratio": 0.1,
    "train.clip_norm": 1.0,
    "train.ema_decay": 0.0,
    "train.steps": None,
}
OF_IMAGES = {"optimizer.learning_rate": 5e-4, "optimizer.layer_decay": 0.75, "train.epochs": 10}
OF_TEXTS = {"optimizer.learning_rate": 5e-5, "train.epochs": 4}


Values = dict[str, Any]
"""Values of parameters by their keys."""


class Request(NamedTuple):
    """Holds what a user asks for: the name of a model, its revision or None, and the source of the data.

    `longest_words` is the number of words of a long text, or 0 if it is not known.
    """

    name: str
    revision: str | None
    source: str
    longest_words: int


def expanded(assignments: list[str], source: str, longest_words: int) -> list[str]:
    """Return the assignments, with `model=LIBRARY:NAME` replaced by those of all parameters that belong to this model.

    `source` is the name of the dataset or format, in which the size of images or the tokenizer is set, too. `longest_words` is the number of
    words of a long text, or 0 if it is not known. Weights that are not in `data/weights/` are fetched. Raises Refusal if the model cannot be
    used, and Unavailable if it cannot be fetched; then nothing is kept.
    """
    result = []
    for given in assignments:
        match = GIVEN.fullmatch(given)
        if match is None:
            result.append(given)
            continue
        if re.match(r"[/~]|\.\.?/", match[2]) and not Path(match[2]).is_dir():
            raise Refusal(f"{given}: there is no folder {untrusted.shown(match[2])}: correct the path")
        find, kind = (of_timm, "image") if match[1] == "timm" else (of_transformers, "text")
        if SOURCES.settings(source).inputs != kind:
            raise Refusal(
                f"{given}: is a model of {kind}s, which source.name={source} does not read: choose another model, or another source"
            )
        try:
            folder, values = find(Request(match[2], match[3], source, longest_words))
        except Refusal:
            raise
        except ValueError as error:  # an unknown architecture
            raise Refusal(f"{given}: {untrusted.shown(error)}") from None
        print(f"set: the weights are in {folder}; `dvc add {folder}` lets `dvc push` share them")
        result += [f"{key}={on_one_line(value)}" for key, value in values.items()]
    return result


def of_timm(request: Request) -> tuple[Path, Values]:
    """Return the folder of a model of timm, and the values of the parameters that fine-tune it."""
    settings, module = MODELS.settings("timm"), MODELS.module("timm")

    def described(folder: Path, architecture: str) -> Values:
        _, _, side = module.timm().get_pretrained_cfg_value(architecture, "input_size")
        has_size = "size" in SOURCES.settings(request.source).model_fields
        print(f"set: {architecture} was trained with images of {side}x{side}{' (source.size)' if has_size else ''}")
        return {
            **({"source.size": side} if has_size else {}),
            "model": "timm",
            "model.architecture": architecture,
            "model.weights": folder.name,
            "model.normalization": "pretrained",
            **FINE_TUNING,
            **OF_IMAGES,
        }

    if Path(request.name).is_dir():
        return placed(request, lambda folder, draft: described(folder, timm_architecture(read_config(draft), draft)))
    architecture = settings.exists(request.name.removeprefix("timm/"))
    repository = module.timm().get_pretrained_cfg_value(architecture, "hf_hub_id")
    if not repository:
        raise Refusal(
            f"model=timm:{architecture}: timm publishes no weights for it: write `model=timm` and `model.architecture={architecture}` to train it anew"
        )
    return fetched(request._replace(name=repository), lambda folder, _: described(folder, architecture))


def timm_architecture(content: Values, folder: Path) -> str:
    """Return the architecture that config.json describes, with the tag of its weights if timm knows them."""
    settings, module = MODELS.settings("timm"), MODELS.module("timm")
    described = content.get("pretrained_cfg")
    published: Values = described if isinstance(described, dict) else {}
    name = str(content.get("architecture"))
    with suppress(ValueError):
        name = settings.exists(f"{name}.{published['tag']}" if published.get("tag") else name)
    settings.exists(name)
    for key in ("mean", "std"):
        known = module.timm().get_pretrained_cfg_value(name, key)
        if key in published and list(published[key]) != list(known):
            raise Refusal(
                f"{folder / CONFIG}: its images are normalized by a {key} of {published[key]}, and timm knows {list(known)} for {name}: "
                "write `model=timm`, model.architecture, model.weights and `model.normalization: data` yourself"
            )
    return name


def of_transformers(request: Request) -> tuple[Path, Values]:
    """Return the folder of a model of transformers, and the values of the parameters that fine-tune it."""
    module = MODELS.module("transformers")

    def described(folder: Path, draft: Path) -> Values:
        content = read_config(draft)
        architecture = str(content.get("model_type"))
        if "auto_map" in content and architecture not in module.transformers().CONFIG_MAPPING:
            raise Refusal(
                f"{folder / CONFIG}: this model needs Python code of its own, which is never run: choose a model that transformers itself has"
            )
        module.Settings.exists(architecture)
        config = module.differences_from_defaults(architecture, content)
        tokenizer = of_tokenizer(draft / TOKENIZER, folder / TOKENIZER, request.name)
        if request.longest_words:
            positions = module.longest_text(module.configuration(architecture, config)) or LONGEST
            # a word has one to three tokens; batches are cut to their longest text
            tokenizer["source.max_length"] = min(LONGEST, positions, 3 * request.longest_words + 16)
        model = {"model": "transformers", "model.architecture": architecture, "model.config": config, "model.weights": folder.name}
        return {**tokenizer, **model, **FINE_TUNING, **OF_TEXTS}

    return (placed if Path(request.name).is_dir() else fetched)(request, described)


def of_tokenizer(path: Path, target: Path, name: str) -> Values:
    """Return the parameters for the tokenizer in the file `path`, which will be `target`. `name` is the model's, for messages.

    Raises Refusal if the file is missing or not supported.
    """
    if not path.is_file():
        raise Refusal(
            f"model=transformers:{name}: has no {TOKENIZER}: save the model and its tokenizer into one folder "
            "(`AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)`), and write this folder"
        )
    digest = files.digest(path)
    tokenizer_json.read(path, digest)
    return {
        "source.tokenizer": "pretrained",
        "source.tokenizer_file": str(target),
        "source.tokenizer_digest": digest,
        "source.vocabulary": None,
        "source.min_count": None,
        "source.normalization": [],
    }


def read_config(folder: Path) -> Values:
    """Return the contents of config.json. Raises Refusal if it is missing or is not the configuration of a model."""
    path = folder / CONFIG
    if not path.is_file():
        raise Refusal(f"{path}: is missing: write the name of a folder with a model, as `save_pretrained` writes it")
    content: Any = None
    with suppress(ValueError, RecursionError), path.open("rb") as file:
        content = json.loads(file.read(CONFIG_BYTES))
    if not isinstance(content, dict):
        raise Refusal(f"{path}: is not the configuration of a model: download it again")
    return content


Describe = Callable[[Path, Path], Values]
"""Maps the folder of a model, and the draft of this folder that has the files now, to the parameters. Raises Refusal for an unusable model."""


def placed(request: Request, describe: Describe) -> tuple[Path, Values]:
    """Return the folder of `data/weights/` with the model of the folder `request.name`, to which it is copied, and its parameters."""
    folder = Path(request.name)
    if request.revision is not None:
        raise Refusal(f"model={folder}@{request.revision}: a folder has no revisions: leave out what follows the `@`")
    if folder.absolute().parent == WEIGHTS_FOLDER.absolute():
        return WEIGHTS_FOLDER / folder.name, describe(WEIGHTS_FOLDER / folder.name, folder)
    target = usable(folder.resolve().name)
    refuse_pickles([path.name for path in folder.iterdir()], str(folder))
    names = [path.name for path in folder.iterdir() if wanted(path.name)]
    values = describe(target, folder)
    if target.exists():
        if all((target / name).exists() and files.digest(target / name) == files.digest(folder / name) for name in names):
            return target, values
        raise Refusal(f"{target}: exists already with other files than {folder}: write model=...:{target}, or move one of the two away")
    print(f"set: copying {folder} ({megabytes(sum((folder / name).stat().st_size for name in names))}) to {target}")
    with interruption.raise_on_signal(), draft_of(target) as draft:
        for name in names:
            shutil.copyfile(folder / name, Path(draft) / name)
        finish(Path(draft), target)
    return target, values


def fetched(request: Request, describe: Describe) -> tuple[Path, Values]:
    """Return the folder of `data/weights/` with the model `request.name` of the hub, which is downloaded unless it exists, and its parameters.

    Another owner or revision has another folder. The digest of each file is compared with that of the hub. Raises Unavailable if the hub
    does not answer as a hub, and Refusal for any other fault.
    """
    repository, revision = request.name, request.revision
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
            refuse_pickles([entry.rfilename for entry in siblings], repository)
            # config.json and the tokenizer first: gigabytes are not downloaded in vain
            entries = sorted(
                (entry for entry in siblings if wanted(entry.rfilename)), key=lambda entry: bool(WEIGHTS.fullmatch(entry.rfilename))
            )
            total = megabytes(sum(entry.size or 0 for entry in entries))
            print(f"set: downloading {repository} at {found.sha} ({total}) to {target}", flush=True)
            values: Values | None = None
            for entry in entries:
                if values is None and WEIGHTS.fullmatch(entry.rfilename):
                    values = describe(target, Path(draft))
                path = Path(hub.hf_hub_download(repository, entry.rfilename, revision=found.sha, local_dir=draft, etag_timeout=TIMEOUT_S))
                refuse_other_bytes(path, entry)
            assert values is not None
            shutil.rmtree(Path(draft) / ".cache", ignore_errors=True)
            finish(Path(draft), target)
            return target, values
    except Refusal:
        raise
    # one that is private is not found, too
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        reason = untrusted.reason(error)
        raise Refusal(f"model={repository}: the hub does not have it ({reason}): correct the name or the revision") from None
    # HTTPError is that of httpx2, for a hub that does not answer; the others are for an answer that is not that of a hub
    except (errors.HTTPError, OSError, TypeError, KeyError, ValueError, AttributeError) as error:  # type: ignore[attr-defined]
        raise Unavailable(
            f"model={repository}: cannot be downloaded ({untrusted.reason(error)}): try again, or copy the model to {target}"
        ) from None


def usable(name: str) -> Path:
    """Return the folder of weights with this name. Raises Refusal if a training could not name it."""
    if name in ("", "..", NO_WEIGHTS) or Path(name).suffix in PICKLES:
        raise Refusal(f"{name or 'the name'}: cannot be the name of a folder in {WEIGHTS_FOLDER}/: rename it")
    return WEIGHTS_FOLDER / name


def draft_of(target: Path) -> "tempfile.TemporaryDirectory[str]":
    """Return a folder beside `target` that is removed at the end, unless it was renamed to `target`. Removes those that killed commands left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.draft*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f".{target.name}.draft", dir=target.parent, ignore_cleanup_errors=True)


def finish(draft: Path, target: Path) -> None:
    """Rename the complete draft, which only its owner can read, to `target`, which has the access rights of the folder around it."""
    draft.chmod(target.parent.stat().st_mode & 0o777)
    draft.rename(target)


def refuse_other_bytes(path: Path, entry: Any) -> None:
    """Raise Refusal if the file does not have the size and the digest that the hub says: SHA-256 for large files, that of Git for others."""
    if entry.lfs:
        same = files.digest(path) == entry.lfs.sha256
    else:
        content = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        same = entry.blob_id in (None, blob)
    if not same or (entry.size is not None and path.stat().st_size != entry.size):
        raise Refusal(
            f"model.weights: {entry.rfilename} has other bytes than the hub says (digest or size): try again, or use another source of the model"
        )


def refuse_pickles(names: list[str], place: str) -> None:
    if not any(map(WEIGHTS.fullmatch, names)):
        raise Refusal(
            f"{place}: has no weights as safetensors: pickled weights can run any code when they are read: choose another revision, or convert "
            "them, as docs/fine-tuning.md shows"
        )


def wanted(name: str) -> bool:
    return name in (CONFIG, TOKENIZER) or bool(WEIGHTS.fullmatch(name))


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
