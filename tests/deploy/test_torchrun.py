"""The torchrun commands in deploy/ and in the docs agree with each other and with the installed torchrun."""

import re

from torch.distributed.run import get_args_parser

from tests.deploy import manifests
from tests.deploy.manifests import option

SAME = ("rdzv-backend", "max-restarts", "shutdown-timeout")
COMMANDS = (manifests.torchrun_of_the_job(), manifests.torchrun_of_the_script())


def test_torchrun_knows_every_option_and_runs_the_stage() -> None:
    for words in COMMANDS:
        arguments = get_args_parser().parse_args([word.replace('"', "") for word in words[1:]])
        assert arguments.module is True
        assert (arguments.training_script, arguments.training_script_args) == ("pipeline", ["train"])
        assert arguments.rdzv_backend == "c10d"


def test_the_commands_agree() -> None:
    text = manifests.DOCS.read_text(encoding="utf-8").replace("\\\n", " ")
    documented = re.findall(r"^python -m pipeline.tools.torchrun (--.*-m pipeline train)$", text, re.MULTILINE)
    assert documented
    commands = [*COMMANDS, *(line.split() for line in documented)]
    for name in SAME:
        assert len({option(words, name) for words in commands}) == 1, name
