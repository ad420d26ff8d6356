"""DVC remotes: none, folders, and servers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.tools.doctor import checkout
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]


def configure(top: Path, url: str) -> None:
    (top / ".dvc").mkdir(exist_ok=True)
    (top / ".dvc/config").write_text(f"[core]\n    remote = main\n['remote \"main\"']\n    url = {url}\n", encoding="utf-8")


def test_no_remote_is_told_with_the_command_that_adds_one(make_context: MakeContext) -> None:
    finding = checkout.remote(make_context())
    assert (finding.status, finding.text.partition(":")[0]) == ("ok", "none")
    assert "`dvc remote add --default NAME URL`" in finding.remedy


def test_a_folder_that_exists_that_can_be_made_and_that_is_not_mounted(make_context: MakeContext, tmp_path: Path) -> None:
    for url in (str(tmp_path), "../beside"):
        configure(tmp_path, url)
        assert checkout.remote(make_context()).status == "ok"
    configure(tmp_path, "/proc/no-such-mount/remote")
    finding = checkout.remote(make_context())
    assert (finding.status, finding.text) == ("warning", "main: /proc/no-such-mount/remote does not exist")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_that_cannot_be_written(make_context: MakeContext, tmp_path: Path, monkeypatch, is_there: bool) -> None:
    configure(tmp_path, str(tmp_path if is_there else tmp_path / "store"))
    monkeypatch.setattr("os.access", lambda *_: False)
    finding = checkout.remote(make_context())
    assert (finding.status, "cannot be written" in finding.text) == ("warning", True)


def test_a_remote_on_a_server_is_named_without_its_secrets(make_context: MakeContext, tmp_path: Path) -> None:
    configure(tmp_path, "http://user:hunter2@127.0.0.1:9/store?token=hunter3")
    finding = checkout.remote(make_context())
    assert (finding.status, finding.text) == ("ok", "main: http://127.0.0.1:9/store, which was not examined")
    assert "`dvc status --cloud`" in finding.remedy
    assert "hunter" not in str(finding)


def test_a_remote_whose_package_is_not_in_the_lock(make_context: MakeContext, tmp_path: Path) -> None:
    configure(tmp_path, "gs://bucket/path")
    finding = checkout.remote(make_context())
    assert (finding.status, finding.remedy) == ("warning", "`uv pip install dvc-gs`")


def test_the_settings_are_read_as_dvc_reads_them(make_context: MakeContext, tmp_path: Path) -> None:
    from dvc.config import Config

    (tmp_path / ".dvc").mkdir()
    config = Config(str(tmp_path / ".dvc"))
    with config.edit("repo") as written:
        written["remote"] = {"main": {"url": "https://host/%7Epath"}, "other": {"url": "/elsewhere"}}
        written["core"] = {"remote": "main"}
    with config.edit("local") as written:
        written["cache"] = {"dir": str(tmp_path / "store")}
    assert checkout.dvc_remote(tmp_path) == ("main", {"url": "https://host/%7Epath"})
    assert checkout.dvc_cache(tmp_path).resolve() == tmp_path / "store"
