"""`pipeline.fit`: what `python -m pipeline repro` does, from Python, such as a notebook. It runs in processes of its own."""

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal
from pipeline.evaluate.reports import recorded
from pipeline.runs import run as tracking
from pipeline.tools import checkout_lock, tool
from pipeline.tools.params.commented_yaml import on_one_line


@dataclass(frozen=True)
class Result:
    """Holds the results of a training. They do not change when another training replaces these files."""

    metrics: dict[str, Any]
    """The contents of `metrics/train.json` and `metrics/evaluate.json`."""
    history: list[dict[str, float]]
    """The rows of `plots/train/history.csv`. A metric that was not measured at a step is missing in its row."""
    figures: dict[str, bytes]
    """The figures of the evaluation as PNG, by their names, such as `confusion`."""
    run: str | None
    """The name of the run, which every command takes; None if tracking is switched off."""
    digest: str
    """SHA-256 of the model file."""
    checkout: Path
    """The absolute path of the folder of the training."""

    @cached_property
    def model(self) -> Any:
        """Return the trained model, as `load_model` does: `result.model.predict(["cat.jpg"])`. It is loaded at the first use.

        Raises Refusal if the file is gone, if another training has replaced it and the current folder is not the checkout, or if it is a
        language model, which `python -m pipeline generate` reads.
        """
        path = Paths(self.checkout).model
        if path.is_file() and files.digest(path) == self.digest:
            return tool("predict.model").load_model(path)
        if Path.cwd() != self.checkout:
            raise Refusal(f"{path}: is that of another training now, and runs are found in the current folder: {change_to(self.checkout)}")
        if self.run is None:
            raise Refusal(f"{path}: is that of another training now: call `fit` again with the changes of this one, which DVC has cached")
        return tool("predict.model").load_model(self.run)

    def __repr__(self) -> str:
        return f"<{recorded.result_line(self.metrics['test'])}>"

    def _repr_html_(self) -> str:
        """Return the result line and the figures: what a notebook shows."""
        images = (
            f'<img alt="{escape(name)}" src="data:image/png;base64,{b64encode(data).decode()}">' for name, data in self.figures.items()
        )
        return f"<p>{escape(recorded.result_line(self.metrics['test']))}</p>\n" + "\n".join(images)


def change_to(checkout: Path) -> str:
    return f"run `import os; os.chdir({str(checkout)!r})`, then repeat it"


def fit(changes: Mapping[str, Any] | None = None) -> Result:
    """Run `python -m pipeline repro -S KEY=VALUE` with `changes`, by dotted key, in the current folder, a checkout. Return its result.

    Its output is printed as it comes. The values stay in params.yaml, and a second call with equal inputs runs nothing. An interrupt (Ctrl-C,
    the stop button of a notebook) is passed on as SIGINT: the training saves a checkpoint, from which the same call continues, and
    KeyboardInterrupt is raised when it has ended. Another command in this checkout waits until the result is read, or this one for it. Raises
    Refusal with the errors that were printed if the command fails, and if the current folder is no checkout.
    """
    if not Path("dvc.yaml").is_file():
        raise Refusal(
            f"{Path.cwd()}: `fit` trains in the current folder, and this one is no checkout: {change_to(Path(__file__).parents[2])}"
        )
    command = [sys.executable, "-m", "pipeline", "repro"]
    for key, value in (changes or {}).items():
        command += ["-S", f"{key}={text_of(key, value)}"]
    with checkout_lock.alone(Path()) as lock:
        run(command, lock)
        return result(Paths(), Environment.read())


def run(command: Sequence[str], lock: int) -> None:
    """Run the command and print its output, as in `fit`. The command shares `lock`, the file descriptor of `checkout_lock.alone`."""
    errors, interrupted = [], False
    environment = {**os.environ, checkout_lock.SHARED_LOCK: str(lock)}
    process = partial(subprocess.Popen, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process(command, env=environment, pass_fds=(lock,), text=True, encoding="utf-8", errors="replace") as child:
        assert child.stdout
        while child.returncode is None:
            try:
                for line in child.stdout:
                    print(line, end="", flush=True)
                    errors += [line.removeprefix("error: ").strip()] if line.startswith("error: ") else []
                child.wait()
            except KeyboardInterrupt:
                if not interrupted:
                    child.send_signal(signal.SIGINT)
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    if child.returncode:
        raise Refusal("\n".join(errors) or f"python -m pipeline repro: exit code {child.returncode}: its output is above")


def text_of(key: str, value: Any) -> str:
    """Return a value as `set` takes it: one of Python or NumPy, or a path. Raises Refusal for any other."""
    if getattr(getattr(value, "dtype", None), "kind", "") == "f":
        value = value.astype(str).astype(float)  # float32(0.003) is 0.003, not 0.003000000026
    value = os.fspath(value) if isinstance(value, os.PathLike) else value.tolist() if hasattr(value, "tolist") else value
    try:
        return on_one_line(value)
    except TypeError:
        raise Refusal(
            f"{key}: a value of the type {type(value).__name__} cannot be written into params.yaml: give a number, a text, a list or a dict"
        ) from None


def result(paths: Paths, environment: Environment) -> Result:
    """Return the result in the files of the checkout."""
    history = [{name: float(value) for name, value in row.items() if value} for row in recorded.read_table(paths.history, "train")]
    metrics = [json.loads((paths.metrics / f"{stage}.json").read_bytes()) for stage in ("train", "evaluate")]
    figures = {path.stem: path.read_bytes() for path in sorted(paths.evaluation_plots.glob("*.png"))}
    run = tracking.journal_of(environment, paths.model) if environment.tracking else None
    return Result(metrics[0] | metrics[1], history, figures, run, files.digest(paths.model), paths.top.absolute())
