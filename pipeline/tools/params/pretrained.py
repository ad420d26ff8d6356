"""`set model=timm:NAME` and `set model=transformers:NAME`: fetches a pretrained model, and finds the parameters that fine-tune it."""

import json
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.registry import MODELS, SOURCES
from pipeline.inference.params import WEIGHTS_FOLDER
from pipeline.prepare.reading import tokenizer_json
from pipeline.tools.params.commented_yaml import on_one_line

GIVEN = re.compile(r"model=(timm|transformers):([^@]+)(?:@(.+))?")
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


class Pretrained(NamedTuple):
    """A pretrained model in a folder of `data/weights/`, and the parameters with which it is fine-tuned, by their keys."""

    folder: Path
    values: dict[str, Any]


def expanded(assignments: list[str], source: str, longest_words: int) -> list[str]:
    """Return the assignments, with `model=LIBRARY:NAME` replaced by those of all parameters that belong to this model.

    `source` is the name of the dataset or format, in which the size of images or the tokenizer is set, too. `longest_words` is the number of
    words of a long text, or 0 if it is not known. Weights that are not in `data/weights/` are fetched. Raises Refusal if the model cannot be
    used, and Unavailable if it cannot be fetched.
    """
    result = []
    for given in assignments:
        match = GIVEN.fullmatch(given)
        if match is None:
            result.append(given)
            continue
        find, kind = (of_timm, "image") if match[1] == "timm" else (of_transformers, "text")
        if SOURCES.settings(source).inputs != kind:
            raise Refusal(
                f"{given}: is a model of {kind}s, which source.name={source} does not read: choose another model, or another source"
            )
        try:
            found = find(match[2], match[3], source, longest_words)
        except Refusal:
            raise
        except ValueError as error:  # an unknown architecture
            raise Refusal(f"{given}: {error}") from None
        print(f"set: the weights are in {found.folder}; `dvc add {found.folder}` lets `dvc push` share them")
        result += [f"{key}={on_one_line(value)}" for key, value in found.values.items()]
    return result


def of_timm(name: str, revision: str | None, source: str, _: int) -> Pretrained:
    settings, module = MODELS.settings("timm"), MODELS.module("timm")
    if Path(name).is_dir():
        architecture = str(read_config(Path(name)).get("architecture"))
        folder = placed(Path(name))
    else:
        settings.exists(architecture := name.removeprefix("timm/"))
        repository = module.timm().get_pretrained_cfg_value(architecture, "hf_hub_id")
        if not repository:
            raise Refusal(
                f"model=timm:{name}: timm publishes no weights for it: write `model=timm` and `model.architecture={name}` to train it anew"
            )
        folder = fetched(repository, revision)
    _, _, side = module.timm().get_pretrained_cfg_value(architecture, "input_size")
    values = {
        "model": "timm",
        "model.architecture": architecture,
        "model.weights": folder.name,
        "model.normalization": "pretrained",
        **FINE_TUNING,
        **OF_IMAGES,
    }
    has_size = "size" in SOURCES.settings(source).model_fields
    return Pretrained(folder, {**({"source.size": side} if has_size else {}), **values})


def of_transformers(name: str, revision: str | None, source: str, longest_words: int) -> Pretrained:
    module = MODELS.module("transformers")
    folder = placed(Path(name)) if Path(name).is_dir() else fetched(name, revision)
    content = read_config(folder)
    architecture = str(content.get("model_type"))
    if "auto_map" in content and architecture not in module.transformers().CONFIG_MAPPING:
        raise Refusal(
            f"{folder / CONFIG}: this model needs Python code of its own, which is never run: choose a model that transformers itself has"
        )
    module.Settings.exists(architecture)
    defaults = module.transformers().AutoConfig.for_model(architecture).to_dict()
    config = {
        key: value for key, value in content.items() if key not in module.IGNORED and value != defaults.get(key) and not key.startswith("_")
    }
    values: dict[str, Any] = {
        "model": "transformers",
        "model.architecture": architecture,
        "model.config": config,
        "model.weights": folder.name,
        **FINE_TUNING,
        **OF_TEXTS,
    }
    tokenizer = of_tokenizer(folder / TOKENIZER)
    if SOURCES.settings(source).task == "classification":
        complete = module.transformers().AutoConfig.for_model(architecture, **config)
        most = min(LONGEST, module.longest_text(complete) or LONGEST)
        # a word has one to three tokens; batches are cut to their longest text
        tokenizer["source.max_length"] = min(most, 3 * longest_words + 16) if longest_words else most
    return Pretrained(folder, {**tokenizer, **values})


def of_tokenizer(path: Path) -> dict[str, Any]:
    """Return the parameters for the tokenizer in the file `path`. Raises Refusal if it is missing or not supported."""
    if not path.exists():
        raise Refusal(
            f"{path}: is missing: write it by `transformers.AutoTokenizer.from_pretrained(NAME).save_pretrained({str(path.parent)!r})`, "
            "or choose another model"
        )
    digest = files.digest(path)
    tokenizer_json.read(path, digest)
    return {
        "source.tokenizer": "pretrained",
        "source.tokenizer_file": str(path),
        "source.tokenizer_digest": digest,
        "source.vocabulary": None,
        "source.min_count": None,
        "source.normalization": [],
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json. Raises Refusal if it is missing or is not the configuration of a model."""
    path = folder / CONFIG
    if not path.exists():
        raise Refusal(f"{path}: is missing: write the name of a folder with a model, as `save_pretrained` writes it")
    content: Any = None
    with suppress(ValueError, RecursionError), path.open("rb") as file:
        content = json.loads(file.read(CONFIG_BYTES))
    if not isinstance(content, dict):
        raise Refusal(f"{path}: is not the configuration of a model: download it again")
    return content


def placed(folder: Path) -> Path:
    """Return the folder of `data/weights/` with the model of `folder`. It is copied there if it is elsewhere."""
    if folder.absolute().parent == WEIGHTS_FOLDER.absolute():
        return WEIGHTS_FOLDER / folder.name
    target = WEIGHTS_FOLDER / folder.absolute().name
    refuse_pickles([path.name for path in folder.iterdir()], str(folder))
    if target.exists():
        raise Refusal(
            f"{target}: exists already, and {folder} would be copied to it: write model=...:{target}, or move one of the two away"
        )
    names = [path.name for path in folder.iterdir() if wanted(path.name)]
    print(f"set: copying {folder} ({megabytes(sum((folder / name).stat().st_size for name in names))}) to {target}")
    with draft_of(target) as draft:
        for name in names:
            shutil.copyfile(folder / name, Path(draft) / name)
        Path(draft).rename(target)
    return target


def fetched(repository: str, revision: str | None) -> Path:
    """Return the folder of `data/weights/` with the model `repository` of the hub. It is downloaded unless the folder exists.

    The digest of each file is compared with that of the hub. Raises Unavailable if the hub does not answer, and Refusal for any other fault.
    """
    target = WEIGHTS_FOLDER / repository.rpartition("/")[2]
    if target.exists():
        print(f"set: {target} exists, so nothing is downloaded")
        return target
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        found = hub.HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        entries = [entry for entry in found.siblings or [] if wanted(entry.rfilename)]
        refuse_pickles([entry.rfilename for entry in found.siblings or []], repository)
        print(
            f"set: downloading {repository} at {found.sha} ({megabytes(sum(entry.size or 0 for entry in entries))}) to {target}", flush=True
        )
        with draft_of(target) as draft:
            for entry in entries:
                path = Path(hub.hf_hub_download(repository, entry.rfilename, revision=found.sha, local_dir=draft, etag_timeout=TIMEOUT_S))
                refuse_other_bytes(path, entry)
            shutil.rmtree(Path(draft) / ".cache", ignore_errors=True)
            Path(draft).rename(target)
    except (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.HFValidationError,
    ) as error:  # a private one is not found, too
        reason = untrusted.reason(error)
        raise Refusal(f"model={repository}: the hub does not have it ({reason}): correct the name or the revision") from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # that of httpx2, for a hub that does not answer
        raise Unavailable(
            f"model={repository}: cannot be downloaded ({untrusted.reason(error)}): try again, or copy the model to {target}"
        ) from None
    return target


def draft_of(target: Path) -> "tempfile.TemporaryDirectory[str]":
    """Return a folder beside `target` that is removed at the end, unless it was renamed to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=f".{target.name}.draft", dir=target.parent, ignore_cleanup_errors=True)


def refuse_other_bytes(path: Path, entry: Any) -> None:
    digest = entry.lfs.sha256 if entry.lfs else None
    if (entry.size is not None and path.stat().st_size != entry.size) or (digest and files.digest(path) != digest):
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
