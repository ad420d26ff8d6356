"""`set model=LIBRARY:NAME` fetches a model from a hub on loopback, or copies it from a folder, and writes parameters that `check` accepts."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest

from pipeline.__main__ import main
from pipeline.core import files
from pipeline.core.yaml_document import Document
from pipeline.inference import model_file
from pipeline.tools.params import pretrained
from tests import pretrained_tokenizers, project
from tests.hub import models, server
from tests.hub.server import Hub
from tests.imports import TOP

BERT, VIT = "model=transformers:acme/bert", "model=timm:test_vit.r160_in1k"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what a hub has: two models, and one with pickled weights."""
    folder = tmp_path_factory.mktemp("published")
    models.save(folder, "bert", vocab_size=30_016)
    models.save_timm(folder, "test_vit")
    (folder / "acme/pickled").mkdir(parents=True)
    (folder / "acme/pickled/pytorch_model.bin").write_bytes(b"\x80\x02.")
    shutil.move(folder / "data/weights/bert", folder / "acme/bert")
    shutil.move(folder / "data/weights/test_vit", folder / "timm/test_vit.r160_in1k")
    (folder / "acme/bert/tokenizer.json").write_text(json.dumps(pretrained_tokenizers.file("bert")))
    (folder / "acme/bert/custom.py").write_text("raise SystemExit('a stranger runs code')")
    return folder


@pytest.fixture
def hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with server.served(published) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(
            huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield hub


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project.make(tmp_path / "project", setting="texts")
    shutil.copytree(TOP / "presets", tmp_path / "project/presets")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    return tmp_path / "project"


Refused = Callable[..., list[str]]
Change = Callable[[Path], object]


def test_a_classifier_of_texts_is_fetched_once_and_trains_without_the_hub(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    folder, left = Path("data/weights/acme_bert"), Path("data/weights/.acme_bert.draft-of-a-killed-command")
    left.mkdir()
    assert main(["set", BERT, "train.epochs=1"]) == 0
    assert not left.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert f"set: downloading acme/bert at {server.COMMIT} (4 MB) to data/weights/acme_bert" in capsys.readouterr().out
    params = Document.read(Path("params.yaml")).data
    assert params["model"]["config"]["vocab_size"] == 30_016
    assert params["source"]["tokenizer"] == "pretrained"
    assert params["train"]["epochs"] == 1, "a value in the same command takes precedence"
    hub.served.clear()
    steps = [f"train.{name}=2" for name in ("steps", "report_every_steps", "validate_every_steps")]
    assert main(["set", BERT, "source.max_length=24", "train.epochs=null", *steps]) == 0
    assert [main([verb]) for verb in ("check", "prepare", "train", "evaluate")] == [0] * 4
    assert hub.served == []
    shutil.rmtree(folder)
    assert model_file.load(Path("models/model.safetensors"))


def test_a_model_of_images_brings_the_size_of_its_images(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").unlink()
    assert main(["set", "preset=image-folder", VIT]) == 0
    assert "test_vit.r160_in1k was trained with images of 160x160: source.image_size becomes this value" in capsys.readouterr().out
    params = Document.read(Path("params.yaml")).data
    assert params["source"]["image_size"] == 160
    assert params["model"] | {"dropout": 0.0} == {
        **models.TIMM["test_vit"],
        "weights": "test_vit.r160_in1k",
        "architecture": "test_vit.r160_in1k",
        "normalization": "pretrained",
        "drop_path": 0.0,
    }


def test_a_size_that_the_model_does_not_accept_is_refused_before_images_are_stored(hub: Hub, refused: Refused) -> None:
    Path("params.yaml").unlink()
    [said] = refused("set", "preset=image-folder", "model=timm", "model.architecture=test_vit", "source.image_size=8")
    assert "model.architecture: test_vit does not accept images of 8x8" in said


def test_a_folder_elsewhere_is_copied(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set", f"model=transformers:{published / 'acme/bert'}"]) == 0
    assert not Path("data/weights/bert/custom.py").exists()
    assert main(["set", "model=transformers:data/weights/bert"]) == 0
    assert "has these values already" in capsys.readouterr().out


FAULTS = {
    "no such model": ("model=transformers:acme/bort", "the hub does not have it"),
    "no such revision": (f"{BERT}@v9", "the hub does not have it"),
    "pickled weights": ("model=transformers:acme/pickled", "has no weights as safetensors: pickled weights can run any code"),
    "no such folder": ("model=transformers:./models/bert", "there is no folder ./models/bert: correct the path"),
    "an unknown architecture": ("model=timm:test_vitt", "which source.name=text_classification does not read"),
}


@pytest.mark.parametrize(("given", "message"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_used_is_refused_and_nothing_is_kept(hub: Hub, refused: Refused, given: str, message: str) -> None:
    refuses_all(refused, given, message)


def refuses_all(refused: Refused, given: str, message: str, code: int = 2) -> None:
    before = Path("params.yaml").read_bytes()
    [said] = refused("set", given, code=code)
    assert message in said
    assert Path("params.yaml").read_bytes() == before
    assert [path.name for path in Path("data/weights").iterdir()] == ["None"]


def test_two_commands_do_not_fetch_at_once(hub: Hub, refused: Refused) -> None:
    with files.locked(pretrained.LOCK, wait=False):
        refuses_all(refused, BERT, "another `set` is fetching a model: try again when it has ended", code=69)


def test_a_hub_that_lies_about_a_digest_is_noticed(hub: Hub, refused: Refused) -> None:
    hub.lies = b"lies"
    refuses_all(refused, BERT, "model.safetensors has other bytes than the hub says (digest or size)")


def test_a_hub_that_hangs_is_not_waited_for(hub: Hub, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "TIMEOUT_S", 0.2)
    hub.hangs = True
    refuses_all(refused, BERT, "cannot be downloaded (", code=69)
    hub.hangs = False


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


STRANGE: dict[str, tuple[Change, str]] = {
    "needs code of its own": (
        lambda path: edit_config(path, model_type="mine", auto_map={"AutoModel": "custom.Mine"}),
        "needs Python code of its own",
    ),
    "has an unknown architecture": (lambda path: edit_config(path, model_type="berd"), "did you mean `bert`?"),
    "has a broken configuration": (lambda path: (path / "config.json").write_text("{"), "is not the configuration of a model"),
    "has no tokenizer": (
        lambda path: (path / "tokenizer.json").unlink(),
        "has no tokenizer.json: save the model and its tokenizer into one folder",
    ),
    "has a truncated tokenizer": (lambda path: (path / "tokenizer.json").write_text('{"model"'), "is not a complete JSON file"),
}


@pytest.mark.parametrize(("change", "message"), STRANGE.values(), ids=STRANGE)
def test_a_folder_that_is_no_usable_model_is_refused(published: Path, refused: Refused, change: Change, message: str) -> None:
    shutil.copytree(published / "acme/bert", "data/weights/mine")
    change(Path("data/weights/mine"))
    before = Path("params.yaml").read_bytes()
    [said] = refused("set", "model=transformers:data/weights/mine")
    assert message in said
    assert Path("params.yaml").read_bytes() == before


def test_truncated_weights_are_refused_before_anything_runs(published: Path, refused: Refused) -> None:
    assert main(["set", f"model=transformers:{published / 'acme/bert'}", "source.max_length=24"]) == 0
    path = Path("data/weights/bert/model.safetensors")
    path.write_bytes(path.read_bytes()[:-100])
    [said] = refused("check")
    assert "data/weights/bert/model.safetensors: is not a complete safetensors file" in said


@pytest.mark.parametrize(("words", "positions", "length"), [(10, 2048, 22), (1000, 2048, 512), (1000, None, 512), (1000, 40, 40)])
def test_the_length_is_that_of_the_texts_in_tokens_of_the_model_which_must_take_it(
    published: Path, monkeypatch: pytest.MonkeyPatch, words: int, positions: int | None, length: int
) -> None:
    monkeypatch.setattr("pipeline.models.transformers.longest_text", lambda _: positions)
    found = pretrained.expanded([f"model=transformers:{published / 'acme/bert'}"], "text_classification", [" ".join(["the"] * words)])
    assert next(each for each in found if each.startswith("source.max_length=")) == f"source.max_length={length}"
