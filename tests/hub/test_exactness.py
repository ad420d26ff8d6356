"""Models of timm and transformers keep what every model promises: exact resuming, equal bytes from any number of processes, shared weights."""

from pathlib import Path
from typing import Any

import pytest

from tests import project, texts
from tests.gpu.presets import images
from tests.hub import models
from tests.laws import test_resuming as resuming
from tests.laws.ranks import Server
from tests.laws.test_processes import TEXT
from tests.train.group.several import Run, train
from tests.train.group.test_sharding import difference, params

WITH_UPDATES = {"model": models.section("llama", lora=True), "train.metric": "valid/perplexity"}
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "timm": (
        lambda: images((32, 32, 3), samples=40),
        {**resuming.COMMON, "model": models.TIMM["test_resnet"], "optimizer.layer_decay": 0.7},
    ),
    "transformers, recomputed": (
        texts.texts,
        {**resuming.OF_TEXT, "model": models.section("bert"), "train.activation_checkpointing": True},
    ),
    "transformers, updates": (texts.corpus, {**resuming.OF_TEXT, **WITH_UPDATES}),
}


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that updates are added to are in the current folder."""
    models.save(tmp_path, "llama", task="ForCausalLM")
    monkeypatch.chdir(tmp_path)


QUICK = "transformers, updates"


@pytest.mark.parametrize(
    ("data", "changes"),
    [pytest.param(*each, id=name, marks=() if name == QUICK else pytest.mark.slow) for name, each in VARIANTS.items()],
)
def test_a_run_stopped_at_any_step_ends_in_the_same_bytes(train_params, tmp_path: Path, data: Any, changes: dict[str, Any]) -> None:
    resuming.refuse_another_end(train_params(changes), data(), tmp_path / "checkpoints")


@pytest.mark.slow
def test_two_processes_with_two_lanes_end_in_the_bytes_of_one(tmp_path: Path) -> None:
    """Updates are drawn, trained, saved and merged alike."""
    ends = []
    changes = {**TEXT, **WITH_UPDATES, "train.steps": 6, "train.micro_batch_size": 6, "source.max_length": 12}
    folders = {count: project.make(tmp_path / f"of-{count}", changes, setting="code") for count in (1, 2)}
    with Server(tmp_path / "log", "pipeline.models.transformers", "transformers.models.llama.modeling_llama", "peft") as server:
        server.train(folders[1], verb="prepare")
        (folders[2] / "data/prepared").symlink_to(folders[1] / "data/prepared")
        for count, folder in folders.items():
            models.save(folder, "llama", task="ForCausalLM")
            server.train(folder, count)
            ends.append(project.digests(folder))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_divided_weights_give_the_bytes_of_whole_weights(tmp_path: Path) -> None:
    """Frozen and trained weights of each layer are divided together."""
    updates = params({**WITH_UPDATES, "train.clip_norm": None, "train.ema_decay": 0.0})
    runs = [
        Run({**updates, "train": {**updates["train"], "sharding": mode}}, texts.corpus(), tmp_path / mode, 3) for mode in ("full", "none")
    ]
    full, whole = train(2, *runs)
    assert full.share < 0.55 < whole.share
    assert difference(full.state, whole.state) == 0
    assert difference(full.exported, whole.exported) == 0
