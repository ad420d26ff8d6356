"""`set model=timm:NAME` and `set model=transformers:NAME`: fetches a pretrained model, and finds the parameters that fine-tune it."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core import files, untrusted
from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS, SOURCES
from pipeline.core.tokenizer import Tokenizer
from pipeline.inference.library import library
from pipeline.prepare import tokens
from pipeline.prepare.reading import tokenizer_json
from pipeline.tools.params.commented_yaml import on_one_line
from pipeline.tools.params.texts import VALUES
from pipeline.tools.params.weights import CONFIG, TOKENIZER, Values, fetched, placed

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
