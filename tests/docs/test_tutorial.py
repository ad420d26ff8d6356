"""The commands of docs/tutorial.md run as they stand there."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from pipeline.core import files
from tests.forking import free_port
from tests.imports import TOP
from tests.repository import GIT, call, copy_of_checkout

MAKE = """\
#!/bin/sh
# the environment is that of the tests, whatever the age of its lock
[ -e .venv ] || ln -s {environment} .venv
exec {make} -o .venv/.locked "$@"
"""
AUTHOR = {f"GIT_{role}_{field}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run_as_they_stand(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (TOP / "docs/tutorial.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    checkout, second, programs = (tmp_path / name for name in ("pipeline", "second", "programs"))
    checkout.mkdir()
    copy_of_checkout(checkout)
    call(checkout, *GIT, "add", "-A")
    call(checkout, *GIT, "commit", "-qm", "begin")
    programs.mkdir()
    (programs / "make").write_text(MAKE.format(environment=sys.prefix, make=shutil.which("make")), encoding="utf-8")
    (programs / "make").chmod(0o755)
    commands = "\n".join(blocks).replace("8080", str(free_port()))
    output = call(checkout, "bash", "-ec", f"trap 'kill $(jobs -p) || true' EXIT\nPATH={programs}:$PATH\n{commands}", **AUTHOR)
    assert "topics version 1 is topics@champion" in output
    assert "is significantly worse than A" in output
    assert "topics@champion stays" in output
    assert '"predictions": [{"class": "delivery"' in output
    assert output.count("Stage 'train' didn't change, skipping") == 1, "on the second machine"
    model = "models/model.safetensors"
    assert files.digest(second / model) == files.digest(checkout / model)
