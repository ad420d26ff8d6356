"""A YAML file as plain data, with the line of every key, read as DVC reads it (YAML 1.2: `1e-3` is a number)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.reader import ReaderError

from pipeline.refusal import Refusal

MOST_BYTES = 100_000
MOST_NODES = 10_000
WORDS = {"NoneType": "nothing", "list": "a list"}

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """`data` is plain; `root` is the tree that it was made from, which knows the lines."""

    path: Path
    data: dict[str, Any]
    root: Node

    @classmethod
    def read(cls, path: Path) -> "Document":
        """Raises Refusal for a file that is missing, not YAML, not a mapping, or beyond any sensible size."""
        text = read_text(path)
        try:
            data, root = parse(text)
        except MarkedYAMLError as error:
            raise Refusal(f"{path}:{line_of(error)}: is not valid YAML: {complaint(error)}") from None
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise Refusal(f"{path}:{line}: is not valid YAML: holds the control character U+{error.character:04X}: remove it") from None
        except RecursionError:
            raise Refusal(f"{path}:1: is nested too deeply: this cannot be a parameter file") from None
        except ValueError as error:
            raise Refusal(f"{path}:1: holds a value that cannot be read: {error}") from None
        if not isinstance(data, dict):
            found = WORDS.get(type(data).__name__, "a single value")
            raise Refusal(f"{path}:1: should hold sections such as `train:`, but holds {found}: copy one of presets/ there")
        return cls(path, data, root)

    def line(self, location: Location) -> int:
        """The line, from 1, of the deepest key of `location` that the file has."""
        node, line = self.root, 1
        for part in location:
            found = child(node, part)
            if found is None:
                break
            node, line = found
        return line


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Refusal(f"{path}:1: is larger than {MOST_BYTES} bytes: this cannot be a parameter file")
        content = path.read_bytes()
        return content.decode("utf-8")
    except FileNotFoundError:
        raise Refusal(f"{path}: is missing: copy one of presets/ there") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Refusal(f"{path}:{line}: is not text in UTF-8 ({error.reason}): save it as UTF-8, or copy one of presets/ there") from None
    except OSError as error:
        raise Refusal(f"{path}: cannot be read ({error.strerror}): make it a file that you may read") from None


def parse(text: str) -> tuple[Any, Node]:
    yaml = YAML(typ="safe", pure=True)
    root = yaml.compose(text)
    data = None if root is None else yaml.constructor.construct_document(root)
    return plain(data, [MOST_NODES]), root


def line_of(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def complaint(error: MarkedYAMLError) -> str:
    """What ruamel found, where the thing that it is part of begins, and for a tab, which nobody sees, the remedy."""
    problem = str(error.problem).partition(" with value")[0]  # of a duplicate section the whole contents would follow
    begun = error.context_mark.line + 1 if error.context_mark else line_of(error)
    context = f", {error.context} from line {begun}" if error.context and begun != line_of(error) else ""
    return problem + context + (": indent with spaces" if r"'\t'" in problem else "")


def child(node: Node, part: str | int) -> tuple[Node, int] | None:
    """What stands under a key or number, and the line where it begins."""
    if isinstance(node, MappingNode):
        # the last of a name: what `<<` merges into a section stands before its own keys
        return next(((value, key.start_mark.line + 1) for key, value in reversed(node.value) if key.value == part), None)
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None


def plain(value: Any, values_left: list[int]) -> Any:
    """Dicts with text for keys, lists and scalars; aliases may not multiply beyond `values_left`."""
    values_left[0] -= 1
    if values_left[0] < 0:
        raise ValueError(f"more than {MOST_NODES} values, counting each alias: write them out")
    if isinstance(value, Mapping):
        return {plain(str(key), values_left): plain(item, values_left) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, values_left) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    text.encode()  # raises for half of a surrogate pair, which no file name and no JSON can hold
    return text
