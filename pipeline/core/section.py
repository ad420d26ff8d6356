"""The base class of the sections of `params.yaml`, nested values as flat ones with dotted keys, and what to write instead of an unknown key."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

Count = Annotated[int, Field(gt=0, le=1_000_000)]
"""A count of things that take memory; the bound turns a typing error into a clear message instead of OOM."""
Steps = Annotated[int, Field(gt=0, le=1_000_000_000_000)]
"""A number of steps; the bound keeps the number exact when it is converted to a float."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""A fraction from 0 inclusive to 1 exclusive."""
Width = Annotated[int, Field(gt=0, le=65_536)]
"""The width of a layer."""
Depth = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers; bounded because each takes time to build, even on the meta device."""
Column = Annotated[str, Field(min_length=1, max_length=255)] | Annotated[int, Field(ge=1, le=1000)]
"""A column of a table by its name in the first line, or by its number from 1 in a file without such a line."""
Patterns = tuple[Annotated[str, Field(min_length=1, max_length=500)], ...]
"""Patterns of names, in the form of `fnmatch`."""

IGNORED_BY_DVC = frozenset({"size", "nfiles"})
"""Keys that DVC leaves out of the key of its run cache at any depth (`dvc/stage/cache.py`). It would take the result of another value."""


def refuse_ignored(value: JsonValue) -> JsonValue:
    """Return `value`. Raises ValueError if it has a key in IGNORED_BY_DVC at any depth."""
    if isinstance(value, dict):
        for key in IGNORED_BY_DVC & value.keys():
            raise ValueError(
                f"has the key `{key}`, which DVC ignores when it looks for a cached result, so a change of its value could have no effect: remove it"
            )
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        refuse_ignored(member)
    return value


FreeMapping = Annotated[dict[str, JsonValue], AfterValidator(refuse_ignored)]
"""A mapping whose keys are defined elsewhere, such as the configuration of a library."""


SECTIONS = ("seed", "source", "model", "loss", "optimizer", "schedule", "augment", "train", "evaluate")
"""The top-level keys of `params.yaml`. They are listed here, and not collected from the sections' classes, so that a stage imports only the
modules of the sections that it reads."""
MOVED = {"train.label_smoothing": "loss.label_smoothing", "source.size": "source.image_size"}
"""Maps each key of earlier versions that has moved to the key that has its value now. `python -m pipeline set --upgrade` moves it."""


@dataclass(frozen=True)
class ValueOf:
    """Stands in `Section.ADDED` for the value of another key of the same file. `key` is this key, such as `seed` or `train.batch_size`."""

    key: str

    def found_in(self, data: Any) -> Any:
        """Return the value in `data`, the sections of the file by name. Raises LookupError or TypeError if the file lacks the key."""
        for part in self.key.split("."):
            data = data[part]
        return data


def filled(value: Any, data: Any) -> Any:
    """Return `value`, a value of `Section.ADDED`, with that of the other key in place of each `ValueOf`. Raises like `ValueOf.found_in`."""
    if isinstance(value, Mapping):
        return {key: filled(item, data) for key, item in value.items()}
    return value.found_in(data) if isinstance(value, ValueOf) else value


class Section(BaseModel):
    """A frozen pydantic model. It rejects unknown keys, and values of a wrong type instead of converting them.

    The docstring under a field is its description in docs/parameters.md and in the JSON schema.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    RECOMMENDED: ClassVar[Mapping[str, Any]] = {}
    """Values that work for most tasks, by key: those that `python -m pipeline set SECTION=NAME` writes. A base class may have those of the
    keys that it defines."""
    RECOMMENDED_FOR: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values instead of those in RECOMMENDED: by the value of the key `name`, or by the task of the dataset, then by key."""

    ADDED: ClassVar[Mapping[str, Any]] = {}
    """The value of each key that older parameter files and model files lack, by key: the value with which they give the same result as before,
    or `ValueOf` another key. `python -m pipeline set --upgrade` writes it; anywhere else, a missing key is an error. A base class may have those
    of the keys that it defines."""

    @classmethod
    def recommended(cls, *, name: str, task: str) -> dict[str, Any]:
        """Return the recommended values by key, without the key `name`.

        `name` is the value of this key, and `task` the task of the dataset.
        """
        return {**cls.inherited("RECOMMENDED"), **cls.RECOMMENDED_FOR.get(name, {}), **cls.RECOMMENDED_FOR.get(task, {})}

    @classmethod
    def inherited(cls, attribute: str) -> dict[str, Any]:
        """Return the values by key that the mappings `attribute`, such as `ADDED`, of this class and its base classes have."""
        return {key: value for kind in reversed(cls.__mro__) for key, value in vars(kind).get(attribute, {}).items()}


Scalar = str | int | float | bool | None


def flatten(nested: Mapping[str, Any], separator: str = ".") -> dict[str, Scalar]:
    """Flatten `{"model": {"width": 8}}` to `{"model.width": 8}`; lists and empty mappings become JSON."""
    return {
        path: value if value is None or isinstance(value, (str, int, float, bool)) else json.dumps(value, default=str)
        for path, value in leaves(nested, separator)
    }


def formatted(value: Scalar) -> str:
    """Format a value as in params.yaml: `true`, `null`, `0.1`, and strings without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def leaves(value: Any, separator: str = ".", path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the joined key and the value of each leaf. Lists and empty mappings are leaves, and are yielded unchanged.

    `path` is the joined key of `value` itself; at the top it is "".
    """
    if isinstance(value, Mapping) and value:
        for key, member in value.items():
            yield from leaves(member, separator, f"{path}{separator}{key}" if path else str(key))
    else:
        yield path, value


def moved(added: Mapping[tuple[str | int, ...], Any]) -> list[tuple[str, str]]:
    """Return the section and the name of each key in MOVED whose new key is among those that an upgrade has `added`, by location."""
    new = flatten({".".join(map(str, location)): value for location, value in added.items()})
    pairs = {key: old.partition(".") for old, key in MOVED.items()}
    return [(section, name) for key, (section, _, name) in pairs.items() if key in new]


SIMILARITY = 0.7
REMEDIES = {
    "write `train.precision`": "amp use_amp mixed_precision fp16 bf16 dtype",
    "write `train.micro_batch_size`, which is `train.batch_size` divided by the number of accumulation steps": (
        "accumulation_steps gradient_accumulation_steps grad_accumulation accumulate_grad_batches"
    ),
    "write `train.activation_checkpointing`": "gradient_checkpointing checkpoint_activations",
    "write `train.clip_norm`": "max_grad_norm grad_clip clip_grad_norm gradient_clip_val",
    "write `loss.label_smoothing`, with `loss.name: cross_entropy`": "label_smoothing",
    "write `loss.class_weights`": "class_weight class_weights",
    "write `source.task`: classification, regression or multi_label": "problem_type task_type",
    "write `source.category_columns`, a list of names": "cat_names cat_cols categorical_columns categorical_features",
    "write `source.number_columns`, a list of names": "cont_names cont_cols continuous_cols numerical_columns numeric_features",
    "write `source.label_column`, a name or a list of names": "target_column target_columns label_col label_columns",
    "write `source.label_delimiter`, with `source.task: multi_label`": "label_delim label_sep",
    "write `train.epochs`": "num_epochs max_epochs",
    "write `train.steps`": "max_steps num_steps",
    "write `train.patience`": "early_stopping",
    "write `optimizer.learning_rate`": "lr learning_rate",
    "write `optimizer.weight_decay`": "weight_decay",
    "set the environment variable PIPELINE_DEVICE": "device gpu",
    "set the environment variable PIPELINE_PROCESSES": "gpus devices num_gpus nproc_per_node",
    "only `prepare` has workers: set the environment variable PIPELINE_WORKERS": "num_workers workers",
    "leave it out: pinned memory is used wherever it helps": "pin_memory",
}
COMMON_KEYS = {key: remedy for remedy, keys in REMEDIES.items() for key in keys.split()}
"""Maps a key of tutorials and other libraries to the remedy."""
ARCHITECTURES = ("mobilenet_v3_small", "mobilenet_v3_large", "resnet18", "resnet50", "efficientnet_b0", "vit_b_16")
COMMON_MODELS = {
    **{cell: f"write `name: recurrent` and `cell: {cell}`" for cell in ("rnn", "gru", "lstm")},
    "cnn": "write `name: convnet`",
    **{name: f"write `name: torchvision` and `architecture: {name}`" for name in ARCHITECTURES},
}
"""Maps a model of tutorials to the remedy."""
NONE: Mapping[str, str] = MappingProxyType({})


def suggestion(name: object, known: tuple[str, ...], common: Mapping[str, str] = NONE) -> str:
    """Return the remedy for an unknown name: that of `common`, whose keys are in lower case, or else the nearest name of `known`."""
    if remedy := common.get(str(name).lower()):
        return remedy
    close = get_close_matches(str(name), known, n=1, cutoff=SIMILARITY)
    return f"did you mean `{close[0]}`?" if close else f"choose one of {', '.join(known)}"
