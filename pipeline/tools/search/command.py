"""`search FILE`: search for the best hyperparameters: read the search file, run the trials, and print all of them, the best first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core import files
from pipeline.core.environment import Environment, Paths
from pipeline.core.params import load
from pipeline.core.prepared import read_record
from pipeline.core.raw_dataset import VALID
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.tools import checkout_lock
from pipeline.tools.params.reference import STAGE_PARAMS
from pipeline.tools.search import study
from pipeline.tools.search.runner import TABLE, SearchRunner
from pipeline.tools.search.settings import Search

LOCK = "lock"


def run(file: str, trials: int | None, apply: bool, keep_models: bool, skip: int | None) -> int:
    """Run the remaining trials of the search file and print the ranked table. Return 0 if a trial is complete, else 1.

    `trials` replaces the number in the file. With `apply`, write the parameters of the best trial to params.yaml. With `keep_models`, keep
    the models of all trials, not only that of the best. `skip` is the number of an unfinished trial to mark as failed.

    Raises Refusal for invalid input, before anything is trained, and for a trial that failed for another reason than its parameters. Raises
    Interrupted after a signal. The same command continues the search after both.
    """
    if trials is not None and trials < 1:
        raise Refusal(f"--trials: is {trials}: write 1 or more")
    study.refuse_missing_optuna()
    paths, environment = Paths(), Environment.read()
    params = Document.read(paths.params)
    for stage_params in STAGE_PARAMS.values():
        load(params, stage_params, sections_with_torch="never")
    search = Search.read(Path(file), params)
    if apply and search.repeated:
        raise Refusal(f"--apply: the trials differ in {' and '.join(search.repeated)}, and the best would be so by chance: leave it out")
    record = read_record(paths.prepared)
    if VALID not in record.splits and "source.fold" not in search.space:
        raise Refusal(f"{paths.prepared}: has no validation split, which a search needs: raise source.valid, and run `dvc repro prepare`")
    folder = (environment.dvc_root or Path()) / ".pipeline/search" / search.settings.name
    with claimed(folder):
        runner = SearchRunner(search, params, record, folder, environment, trials or search.settings.trials, keep_models)
        try:
            if skip is not None:
                runner.skip(skip)
            runner.run()
            return conclude(runner, file, apply=apply)
        finally:
            runner.study.close()


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the lock of the search in `folder`. Raises Refusal if another process holds it."""
    with files.locked(folder / LOCK, wait=False) as taken:
        if not taken:
            raise Refusal(f"{folder}: another process is running this search: wait for it, stop it, or write another `name:` into the file")
        files.sweep(folder)
        yield


def conclude(runner: SearchRunner, file: str, *, apply: bool) -> int:
    """Print the table and the best trial, and write the table as CSV. Return 0 if a trial is complete, else 1.

    With `apply`, write the parameters of the best trial to params.yaml. Raises Refusal then if no trial is complete, or if the file has been
    edited while the search ran.
    """
    rows, keys, target = runner.study.rows(), list(runner.search.space), runner.params.path
    study.print_table(rows, runner.metric, keys)
    files.write_text(runner.folder / TABLE, study.as_csv(rows, runner.metric, keys))
    best = runner.study.best()
    if runner.search.repeated:
        for repetition in runner.repetitions():
            study.print_spreads(repetition, runner.search.repeated)
        return 0 if any(row.scores for row in rows) else 1
    if best:
        print(f"best: trial {best.number}, {study.described(best.params)}; model: {runner.trial(best.number).paths.model}")
    if not apply:
        if best:
            print(f"`python -m pipeline search {file} --apply` writes its parameters to {target}; `dvc repro` then trains it again")
        return 0 if best else 1
    if not best:
        raise Refusal("no trial is complete, so no parameters can be applied: see above why the trials failed, or add trials by --trials")
    with checkout_lock.alone(Path()):
        if target.read_text(encoding="utf-8") != runner.search.params:
            raise Refusal(f"{target}: has been edited while the search ran, and is left as it is: repeat the command with --apply")
        files.write_text(target, runner.search.text_of(best.params))
    print(f"{target} now has the parameters of trial {best.number}; `git diff {target}` shows them")
    return 0
