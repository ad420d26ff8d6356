"""DVC remotes: none, folders, and hosts that answer or do not."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.tools.doctor import checkout
from pipeline.tools.doctor.finding import Context

MakeContext = Callable[..., Context]


def configure(top: Path, url: str, *, more: str = "", local: str = "") -> None:
    (top / ".dvc").mkdir(exist_ok=True)
    (top / ".dvc/config").write_text(f"[core]\n    remote = main\n['remote \"main\"']\n    url = {url}\n{more}", encoding="utf-8")
    (top / ".dvc/config.local").write_text(local, encoding="utf-8")


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


def test_a_host_that_answers_and_one_that_does_not(make_context: MakeContext, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        configure(tmp_path, f"http://user:hunter2@127.0.0.1:{port}/store?token=hunter3")
        finding = checkout.remote(make_context())
        assert (finding.status, f"http://127.0.0.1:{port}/store answers" in finding.text) == ("ok", True)
        assert "hunter" not in str(finding)
    finding = checkout.remote(make_context())
    assert (finding.status, f"127.0.0.1:{port} does not answer (Connection refused)" in finding.text) == ("warning", True)
    assert "hunter" not in str(finding)


def test_an_endpoint_of_this_machine_replaces_that_of_the_store(make_context: MakeContext, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checkout, "is_installed", lambda _: True)
    configure(tmp_path, "s3://bucket/path", local="['remote \"main\"']\n    endpointurl = http://127.0.0.1:9\n")
    assert "127.0.0.1:9 does not answer" in checkout.remote(make_context()).text


def test_a_remote_whose_package_is_not_in_the_lock(make_context: MakeContext, tmp_path: Path) -> None:
    configure(tmp_path, "gs://bucket/path")
    finding = checkout.remote(make_context())
    assert (finding.status, finding.remedy) == ("warning", "`uv pip install dvc-gs`")


def test_a_connection_through_a_proxy_is_not_examined(make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path, "http://127.0.0.1:9/store")
    monkeypatch.setenv("no_proxy", "localhost")
    assert "does not answer" in checkout.remote(make_context()).text
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "not examined" in checkout.remote(make_context()).text


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
