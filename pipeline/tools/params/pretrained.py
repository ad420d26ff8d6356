"""`set model=timm:NAME` and `set model=transformers:NAME`: brings a pretrained model into `data/weights/`, from the hub of Hugging Face or from another
folder, and finds the parameters that fine-tune it.
"""

import glob
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core import files, interruption, untrusted
from pipeline.core.refusal import Refusal, Unavailable
from pipeline.core.registry import MODELS, SOURCES
from pipeline.core.tokenizer import Tokenizer
from pipeline.inference.params import NO_WEIGHTS, PICKLES, WEIGHTS_FOLDER, library
from pipeline.prepare.inputs import tokens
from pipeline.prepare.reading import tokenizer_json
from pipeline.tools.params.cell_values import VALUES
from pipeline.tools.params.commented_yaml import on_one_line

GIVEN = re.compile(r"model=(timm|transformers):(.+?)(?:@([^@/]+))?")
"""`model=LIBRARY:NAME` or `model=LIBRARY:NAME@REVISION`. NAME is a repository of the hub, the name of weights in timm, or a folder."""
CONFIG_BYTES = 2**20
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
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
TIMEOUT_S = 10.0
LOCK = Path(".pipeline/weights.lock")

Values = dict[str, Any]
"""Values of parameters by their keys."""
Describe = Callable[[Path, Path], Values]
"""Maps the folder of a model, and the draft of this folder that has the files now, to the parameters. Raises Refusal for an unusable model."""


def expanded(assignments: Sequence[str], source: str, texts: Sequence[str]) -> list[str]:
    """Return the assignments, with `model=LIBRARY:NAME` replaced by those of all parameters that belong to this model, but for those
    that are given, too.

    `source` is the name of the dataset or format, in which the size of images or the tokenizer is set, too. `texts` are some
    texts of the data, () if they are not known. Weights that are not in `data/weights/` are fetched. Raises Refusal if the model cannot be
    used, and Unavailable if it cannot be fetched; then nothing is kept.
    """
    result, own = list[str](), {given.partition("=")[0] for given in assignments} - {"model"}
    for given in assignments:
        match = GIVEN.fullmatch(given)
        if match is None:
            result.append(given)
            continue
        if re.match(r"[/~]|\.\.?/", match[2]) and not Path(match[2]).is_dir():
            raise Refusal(f"{given}: there is no folder {untrusted.shown(match[2])}: correct the path")
        find, kind = (partial(of_timm, source=source), "image") if match[1] == "timm" else (partial(of_transformers, texts=texts), "text")
        if SOURCES.settings(source).inputs != kind:
            problem = f"is a model of {kind}s, which source.name={source} does not read"
            raise Refusal(f"{given}: {problem}: choose another model, or another source")
        try:
            folder, values = find(match[2], match[3])
        except Refusal:
            raise
        except ValueError as error:  # an unknown architecture
            raise Refusal(f"{given}: {untrusted.shown(error)}") from None
        print(f"set: the weights are in {folder}; `dvc add {folder}` lets `dvc push` share them")
        result += [f"{key}={on_one_line(value)}" for key, value in values.items() if key not in own]
    return result


def of_timm(name: str, revision: str | None, *, source: str) -> tuple[Path, Values]:
    """Return the folder of a model of timm, and the values of the parameters that fine-tune it with the images of `source`."""
    settings, module = MODELS.settings("timm"), MODELS.module("timm")
    library("timm", module.VERSION, f"model=timm:{name}: ")

    def described(folder: Path, architecture: str) -> Values:
        _, _, side = module.timm().get_pretrained_cfg_value(architecture, "input_size")
        has_size = "image_size" in SOURCES.settings(source).model_fields
        advice = ": source.image_size becomes this value, unless you write another" if has_size else ""
        print(f"set: {architecture} was trained with images of {side}x{side}{advice}")
        size = {"source.image_size": side} if has_size else {}
        model = {"model": "timm", "model.architecture": architecture, "model.weights": folder.name, "model.normalization": "pretrained"}
        return {**size, **model, **FINE_TUNING, **OF_IMAGES}

    if Path(name).is_dir():
        return placed(Path(name), revision, lambda folder, draft: described(folder, timm_architecture(read_config(draft), draft)))
    architecture = settings.exists(name.removeprefix("timm/"))
    repository = module.timm().get_pretrained_cfg_value(architecture, "hf_hub_id")
    if not repository:
        remedy = f"write `model=timm` and `model.architecture={architecture}` to train it anew"
        raise Refusal(f"model=timm:{architecture}: timm publishes no weights for it: {remedy}")
    return fetched(repository, revision, lambda folder, _: described(folder, architecture))


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
            problem = f"its images are normalized by a {key} of {published[key]}, and timm knows {list(known)} for {name}"
            remedy = "write `model=timm`, model.architecture, model.weights and `model.normalization: data` yourself"
            raise Refusal(f"{folder / CONFIG}: {problem}: {remedy}")
    return name


def of_transformers(name: str, revision: str | None, *, texts: Sequence[str]) -> tuple[Path, Values]:
    """Return the folder of a model of transformers, and the values of the parameters that fine-tune it with texts like `texts`, if there are any."""
    module = MODELS.module("transformers")

    def described(folder: Path, draft: Path) -> Values:
        content = read_config(draft)
        architecture = str(content.get("model_type"))
        if "auto_map" in content and architecture not in module.transformers().CONFIG_MAPPING:
            problem = "this model needs Python code of its own, which is never run"
            raise Refusal(f"{folder / CONFIG}: {problem}: choose a model that transformers itself has")
        module.Settings.exists(architecture)
        config = module.differences_from_defaults(architecture, content)
        tokenizer = of_tokenizer(draft / TOKENIZER, folder / TOKENIZER, name)
        if texts:
            positions = module.longest_text(module.configuration(architecture, config)) or tokens.MOST_TOKENS
            description = tokenizer_json.read(draft / TOKENIZER, tokenizer["source.tokenizer_digest"])
            tokenizer["source.max_length"] = min(positions, tokens.row_length(Tokenizer(description), texts))
        model = {"model": "transformers", "model.architecture": architecture, "model.config": config, "model.weights": folder.name}
        return {**tokenizer, **model, **FINE_TUNING, **OF_TEXTS}

    if Path(name).is_dir():
        return placed(Path(name), revision, described)
    return fetched(name, revision, described)


def of_tokenizer(path: Path, target: Path, name: str) -> Values:
    """Return the parameters for the tokenizer in the file `path`, which will be `target`. `name` is the model's, for messages.

    Raises Refusal if the file is missing or not supported.
    """
    if not path.is_file():
        remedy = "save the model and its tokenizer into one folder (`AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)`), and write this folder"
        raise Refusal(f"model=transformers:{name}: has no {TOKENIZER}: {remedy}")
    digest = files.digest(path)
    tokenizer_json.read(path, digest)
    values = {"tokenizer": "pretrained", **VALUES["pretrained"], "tokenizer_file": str(target), "tokenizer_digest": digest}
    return {f"source.{key}": value for key, value in values.items()}


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
    with draft_of(target) as draft:
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
        with draft_of(target) as draft:
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
    """Yield a folder beside `target`, which at the end is renamed to `target`, or removed after an exception or a signal. First remove those
    that killed commands left.

    Raises Unavailable if another command of this checkout has such a folder.
    """
    with interruption.raise_on_signal(), files.locked(LOCK, wait=False) as taken:
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
