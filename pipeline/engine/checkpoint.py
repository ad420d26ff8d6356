"""The states of a training from which it goes on after a kill: the newest few, whole and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine import tensor_file
from pipeline.engine.state import Tensors
from pipeline.refusal import Refusal


@dataclass(frozen=True)
class Checkpoints:
    """The newest states of one training, in one folder; at most `kept` of them stay."""

    folder: Path
    kept: int

    def save(self, step: int, tensors: Tensors, metadata: Mapping[str, Any]) -> None:
        tensor_file.save(self.folder / f"step-{step:012d}.safetensors", tensors, metadata)
        for old in self.paths()[: -self.kept]:
            old.unlink()

    def newest(self) -> tuple[Tensors, dict[str, Any]] | None:
        """The last good state; a damaged one is named and the one before it used."""
        for path in reversed(self.paths()):
            try:
                return tensor_file.load(path)
            except Refusal:
                # out of the way: by its number it would count as the newest for ever
                aside = path.replace(path.with_suffix(".damaged"))
                print(f"warning: {path}: is damaged, and now {aside.name}: going back to the checkpoint before it", flush=True)
        return None

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))
