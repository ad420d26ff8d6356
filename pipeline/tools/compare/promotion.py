"""`promote`: register a model in MLflow, and give it an alias only if it is no worse than the model that has the alias now."""

import re
import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal, counted, rounded
from pipeline.core.untrusted import shown
from pipeline.inference.machine import Machine
from pipeline.runs import find
from pipeline.runs.mlflow.store import MODEL_TAG, Store, existing
from pipeline.tools.compare.comparing import test_sections
from pipeline.tools.compare.models import ComparedModel, EvaluationSplit, Paired, incomparability, read

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

NAME, ALIAS = re.compile(r"[^/:@%\"'.\s][^/:@%\"'\s]*"), re.compile(r"(?!v[0-9]+$)(?!latest$)[A-Za-z0-9_-]+")
RESULT_TAG = "pipeline.promotion"


def run(subject: str, name: str, alias: str, force: bool) -> int:
    """Register the model `subject` as a version of `name`. Give this version `alias` if `force` is True, or if it is no worse than the holder,
    the version that has the alias now.

    A model file that is registered already is not registered again. "No worse" means: not significantly worse in the paired test on the
    prepared test split. Print the test and the result. Return 1 if the model did not get the alias, else 0. Raises Refusal if the
    name or the alias is not valid, if MLflow fails, or if the model, or a run of it in MLflow, cannot be found.
    """
    refuse_bad_names(name, alias)
    paths, environment = Paths(), Environment.read()
    find.refuse_missing_store(subject, environment)
    test, has_alias = None, True
    with redirect_stdout(sys.stderr):
        candidate, store = read(subject, paths, environment), Store(environment)
        store.refuse_other_registry()
        with refusing(subject, store):
            logged = find_logged(subject, candidate, store)
            holder = existing(lambda: store.client.get_model_version_by_alias(name, alias))
        if holder and holder.tags.get(MODEL_TAG) == candidate.digest:
            version, text = str(holder.version), "it had the alias before, so nothing changed"
        else:
            text = "no version had this alias"
            if holder:
                test, text = judged(candidate, f"models:/{name}/{holder.version}", paths, environment)
                is_no_worse = test is not None and not test.second_is_worse
                has_alias = is_no_worse or force
                text += "; --force gave it the alias" if force and not is_no_worse else ""
            with refusing(subject, store):
                version = register(store, name, logged, candidate.digest)
                store.client.set_model_version_tag(name, version, RESULT_TAG, text)
                if has_alias:
                    store.client.set_registered_model_alias(name, alias, version)
    if test:
        print("\n\n".join(test_sections(test, f"{name}@{alias}", "new")) + "\n")
    print(f"promote: {name} version {version} {'is' if has_alias else 'is registered, but is not'} {name}@{alias}: {text}")
    return 0 if has_alias else 1


def judged(candidate: ComparedModel, holder: str, paths: Paths, environment: Environment) -> tuple[Paired | None, str]:
    """Return the paired test of the holder of the alias and the candidate, and its result in words.

    If the two cannot be compared, the test is None, and the text gives the reason.
    """
    uncompared = f"it could not be compared with {holder}"
    try:
        champion = read(holder, paths, environment)
        if reason := incomparability(champion.manifest.spec, candidate.manifest.spec):
            return None, f"{uncompared}: {reason}"
        test = EvaluationSplit(champion, paths, Machine.set_up(environment)).test(candidate)
    except Refusal as refusal:
        return None, f"{uncompared}: {refusal}"
    metrics = [metric for metric in (test.accuracy, test.loss) if metric]
    numbers = ", ".join(f"{metric.metric} {rounded(metric.second)} against {rounded(metric.first)}" for metric in metrics)
    verdict = "significantly worse" if test.second_is_worse else "significantly better" if test.is_significant else "no worse"
    return test, f"it is {verdict} than {holder}: {numbers} on {counted(test.num_samples, 'test sample')}"


def refuse_bad_names(registered: str, alias: str) -> None:
    if not NAME.fullmatch(registered):
        raise Refusal(
            f"{shown(registered)}: is not a valid name for a registered model: write one without spaces, quotes and / : . % @, such as digits"
        )
    if not ALIAS.fullmatch(alias):
        raise Refusal(f"--alias {shown(alias)}: is not a valid alias: write letters, digits, - and _, not `latest` or a version such as v1")


def refusing(name: str, store: Store) -> AbstractContextManager[None]:
    """Within this context, turn an exception of MLflow into a Refusal."""
    return store.refusing(name, f"MLflow at {store.address.shown} failed", ": `python -m pipeline doctor` names what is wrong with it")


def find_logged(name: str, candidate: ComparedModel, store: Store) -> "LoggedModel":
    """Return the logged model in MLflow with the candidate's model file: that of the named run, else the newest with the same bytes.

    Raises Refusal if there is none, or its run was deleted. A bare file cannot be registered: MLflow serves the logged model of a run, which
    names its data, parameters and commit, and a file has none of these.
    """
    if name.startswith("models:"):
        return find.find_logged(name, store)
    run_ids = candidate.run.run_ids.values() if candidate.run else [name]
    experiments = [each.experiment_id for each in store.client.search_experiments()]
    found = store.client.search_logged_models(experiments, filter_string=f"tags.`{MODEL_TAG}` = '{candidate.digest}'")
    kept = [each for each in found if str(each.status) == "READY" and each.source_run_id and store.active(each.source_run_id)]
    if not kept:
        raise Refusal(
            f"{shown(name)}: MLflow has no run with this model: send its run with `python -m pipeline sync`, record the model of a finished "
            "`dvc repro` with `python -m pipeline summary`, or set MLFLOW_TRACKING_URI to the store that has the run"
        )
    return max(kept, key=lambda each: (each.source_run_id in run_ids, each.creation_timestamp))


def register(store: Store, name: str, logged: "LoggedModel", digest: str) -> str:
    """Return the version of `name` whose model file has the SHA-256 `digest`. If there is none, create it from `logged`."""
    import mlflow

    for each in store.client.search_model_versions(f"name='{name}'"):
        if each.tags.get(MODEL_TAG) == digest:
            return str(each.version)
    with store.as_default():
        return str(mlflow.register_model(f"models:/{logged.model_id}", name, tags={MODEL_TAG: digest}).version)
