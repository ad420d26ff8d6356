"""`python -m pipeline tensorboard`: write the runs of this checkout as event files, for those who use TensorBoard."""

from pathlib import Path

from pipeline.counted import counted
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.runtime.environment import Environment
from pipeline.tracking import event_files, journal, subject


def run(runs: list[str], output: str | None) -> None:
    """Write the event files of `runs`, or of all runs, to the folder `output` (default: `.pipeline/tensorboard`), one folder for each run.

    Print the command that shows them. Raises Refusal if TensorBoard is not installed, if there is no run, or if a name denotes none.
    """
    event_files.refuse_unavailable()
    environment = Environment.read()
    folder = Path(output) if output else environment.root / ".pipeline" / "tensorboard"
    journals = [subject.journal_of(name, environment) for name in runs] or journal.journals(environment.root)
    if not journals:
        raise Refusal(f"{journal.journals_folder(environment.root)}: there is no run: run `dvc repro`")
    for found in journals:
        name = event_files.folder_name(found)
        written = event_files.write(folder / name, found, Paths().top)
        print(f"tensorboard: {name}: {counted(written.points, 'point')}, {counted(written.figures, 'figure')}")
    print(f"show them: tensorboard --logdir {folder}")
