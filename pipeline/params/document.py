"""A YAML file as plain data, with the line of every key, read as DVC reads it (YAML 1.2: `1e-3` is a number)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedBase
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.refusal import Refusal

MOST_BYTES = 1_000_000
MOST_NODES = 10_000

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """`data` is plain; `marked` is the same with ruamel's line numbers."""

    path: Path
    data: dict[str, Any]
    marked: Any

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Raises Refusal for a file that is missing, not YAML, not a mapping, or beyond any sensible size."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise Refusal(f"{path}: is larger than {MOST_BYTES} bytes: this cannot be a parameter file")
            marked = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
            data = plain(marked, [MOST_NODES])
        except FileNotFoundError:
            raise Refusal(f"{path}: is missing: copy one of presets/ there") from None
        except (OSError, UnicodeDecodeError) as error:
            raise Refusal(f"{path}: cannot be read: {error}") from None
        except MarkedYAMLError as error:
            raise Refusal(f"{path}:{line_of(error)}: is not valid YAML: {error.problem}") from None
        except (YAMLError, RecursionError, ValueError) as error:
            if isinstance(error, Refusal):
                raise
            raise Refusal(f"{path}: is not valid YAML: {type(error).__name__}") from None
        if not isinstance(data, dict):
            raise Refusal(f"{path}: should hold sections such as `train:`, but holds {type(data).__name__}")
        return cls(path, data, marked)

    def line(self, location: Location) -> int:
        """The line, from 1, of the deepest key of `location` that the file has."""
        node, line = self.marked, 1
        for part in location:
            try:
                line = node.lc.data[part][0] + 1
                node = node[part]
            except (AttributeError, KeyError, IndexError, TypeError):
                break
        return line


def line_of(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def plain(node: Any, nodes_left: list[int]) -> Any:
    """Ruamel's nodes as dict, list, str, int, float, bool and None; aliases may not multiply beyond `nodes_left`."""
    nodes_left[0] -= 1
    if nodes_left[0] < 0:
        raise Refusal(f"the file holds more than {MOST_NODES} values: this cannot be a parameter file")
    if isinstance(node, Mapping):
        return {str(key): plain(value, nodes_left) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [plain(value, nodes_left) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node.value if isinstance(node, CommentedBase) and hasattr(node, "value") else node)
