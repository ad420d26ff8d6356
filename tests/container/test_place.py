"""Where a container's job runs: in the mounted checkout, or in a copy that keeps what its user changed."""

from pathlib import Path

import pytest

from pipeline.container import place
from pipeline.refusal import Refusal
from tests.imports import TOP


def checkout(folder: Path, *, lock: str = "torch==1\n") -> Path:
    for part in (*place.PARTS, "pipeline/__main__.py", "pipeline/models/mlp.py", "presets/digits.yaml"):
        path = folder / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part, encoding="utf-8")
    (folder / "requirements.lock").write_text(lock, encoding="utf-8")
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return checkout(tmp_path / "image")


@pytest.fixture
def nothing_else_is_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """These tests may run as root, whom no mode of a file keeps out."""
    monkeypatch.setattr("os.access", lambda path, _: tmp_path / "home" in (path, *Path(path).parents))


def test_a_checkout_that_can_be_written_is_the_place(tmp_path: Path, image: Path) -> None:
    mounted = checkout(tmp_path / "mounted")
    assert place.find(mounted, image, [tmp_path / "home"]) == place.Place(mounted)
    assert not (tmp_path / "home").exists()


def test_without_one_the_images_code_is_copied(tmp_path: Path, image: Path) -> None:
    (image / "pipeline/__pycache__").mkdir()
    (image / "pipeline/__pycache__/x.pyc").touch()
    for here in (image, tmp_path):
        found = place.find(here, image, [tmp_path / "home"])
        assert found == place.Place(tmp_path / "home", copy_of=image)
    copied = {path.relative_to(found.top).as_posix() for path in found.top.rglob("*") if path.is_file()}
    more = {".dvc/config.local", ".pipeline/copied.json", ".pipeline/copied.lock"}
    assert copied == {*place.PARTS, "pipeline/__main__.py", "pipeline/models/mlp.py", "presets/digits.yaml", *more}
    assert "no_scm = true" in (found.top / ".dvc/config.local").read_text()


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_a_checkout_that_cannot_be_written_is_copied_with_its_parameters(tmp_path: Path, image: Path) -> None:
    mounted = checkout(tmp_path / "mounted")
    (mounted / "params.yaml").write_text("mine", encoding="utf-8")
    found = place.find(mounted, image, [tmp_path / "home"])
    assert found == place.Place(tmp_path / "home", copy_of=mounted)
    assert (found.top / "params.yaml").read_text() == "mine"


def test_another_image_replaces_its_files_and_none_that_was_changed_by_hand(tmp_path: Path, image: Path) -> None:
    home = place.find(image, image, [tmp_path / "home"]).top
    (home / "params.yaml").write_text("mine", encoding="utf-8")
    (home / "models").mkdir()
    (home / "models/model.safetensors").touch()
    for part in ("params.yaml", "pipeline/models/mlp.py"):
        (image / part).write_text("newer", encoding="utf-8")
    for _ in range(2):
        assert place.find(image, image, [home]).kept == ("params.yaml",)
    assert (home / "params.yaml").read_text() == "mine"
    assert (home / "pipeline/models/mlp.py").read_text() == "newer"
    assert (home / "models/model.safetensors").exists()


def test_what_another_image_no_longer_has_goes_unless_it_was_changed(tmp_path: Path, image: Path) -> None:
    for name in ("old.py", "mine.py"):
        (image / "pipeline/models" / name).touch()
    home = place.find(image, image, [tmp_path / "home"]).top
    (home / "pipeline/models/mine.py").write_text("mine", encoding="utf-8")
    (home / "pipeline/models/own.py").touch()
    for name in ("old.py", "mine.py"):
        (image / "pipeline/models" / name).unlink()
    place.find(image, image, [home])
    assert {path.name for path in (home / "pipeline/models").iterdir()} == {"mlp.py", "mine.py", "own.py"}


def test_a_copy_that_was_killed_is_finished_by_another_image(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place.find(image, image, [tmp_path / "home"]).top
    for text in ("second", "third"):
        for part in ("params.yaml", "pipeline/models/mlp.py"):
            (image / part).write_text(text, encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(place, "replace", replace_one_and_die)
            with pytest.raises(KeyboardInterrupt):
                place.find(image, image, [home])
    assert place.find(image, image, [home]).kept == ()
    assert (home / "params.yaml").read_text() == (home / "pipeline/models/mlp.py").read_text() == "third"


def replace_one_and_die(digests: dict[str, str], source: Path, home: Path) -> None:
    path = min(digests)
    (home / path).write_bytes((source / path).read_bytes())
    raise KeyboardInterrupt


def test_what_a_user_configured_for_dvc_stays(tmp_path: Path, image: Path) -> None:
    home = place.find(image, image, [tmp_path / "home"]).top
    (home / ".dvc/config.local").write_text("[core]\n    no_scm = true\n    remote = mine\n", encoding="utf-8")
    place.find(image, image, [home])
    assert "mine" in (home / ".dvc/config.local").read_text()


def test_no_checkout_is_taken_for_a_copy(tmp_path: Path, image: Path) -> None:
    (tmp_path / "home/.git").mkdir(parents=True)
    with pytest.raises(Refusal, match="home is a checkout of its own: mount it at its own path"):
        place.find(image, image, [tmp_path / "home"])


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_a_volume_that_cannot_be_written_is_not_passed_over(tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "volume")
    with pytest.raises(Refusal, match="volume is mounted and uid"):
        place.find(image, image, [tmp_path / "volume", tmp_path / "home"])


def test_a_checkout_of_another_lock_is_refused(tmp_path: Path, image: Path) -> None:
    mounted = checkout(tmp_path / "mounted", lock="torch==2\n")
    with pytest.raises(Refusal, match=r"requirements.lock is not the lock that this image was built from.*make image"):
        place.find(mounted, image, [tmp_path / "home"])


@pytest.mark.usefixtures("nothing_else_is_writable")
def test_the_first_home_that_can_be_written_is_taken_and_without_one_the_flags_are_named(tmp_path: Path, image: Path) -> None:
    homes = [tmp_path / "elsewhere", Path("/proc/none"), tmp_path / "home"]
    assert place.find(image, image, homes).top == tmp_path / "home"
    with pytest.raises(Refusal, match=r"--tmpfs /tmp.*-v NAME:"):
        place.find(image, image, homes[:2])


def test_the_image_holds_what_is_copied() -> None:
    allowed = {line.removeprefix("!") for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {*place.PARTS, "pipeline", "pipeline/**/*.py", "presets/*.yaml"}
    assert all((TOP / part).exists() for part in place.PARTS)
