"""Flattens nested mappings into one mapping with joined keys, such as `model.width`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
