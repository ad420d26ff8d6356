"""`promote`: register a model in MLflow, and give it an alias only if it is no worse than the model that has the alias now."""

import json
import re
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING, NamedTuple

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal, counted
from pipeline.core.untrusted import shown
from pipeline.inference.digits import rounded
from pipeline.inference.machine import Machine
from pipeline.runs import find
from pipeline.runs.events import is_pending
from pipeline.runs.mlflow import mirror
from pipeline.runs.mlflow.store import MODEL_TAG, Store, existing, restoring
from pipeline.tools.compare.comparing import test_sections
from pipeline.tools.compare.models import ComparedModel, read
from pipeline.tools.compare.paired import EvaluationSplit, Paired, incomparability, paired

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

NAME, ALIAS = re.compile(r"[^/:@%\"'.\s][^/:@%\"'\s]*"), re.compile(r"(?!v[0-9]+$)(?!latest$)[A-Za-z0-9_-]+")
RESULT_TAG = "pipeline.promotion"
VERSIONS_TAG = "mlflow.modelVersions"


def run(subject: str, name: str, alias: str, force: bool) -> int:
    """Register the model `subject` as a version of `name`. Give this version `alias` if `force` is True, or if it is no worse than the model
    that has the alias now.

    Print the paired test and the result. Return 1 if the model did not get the alias, else 0.
    """
    promotion = promote(subject, name, alias, Paths(), Environment.read(), force=force)
    if promotion.test:
        print("\n\n".join(test_sections(promotion.test, f"{name}@{alias}", "new")) + "\n")
    result = f"is {name}@{alias}" if promotion.has_alias else f"is registered, but is not {name}@{alias}"
    print(f"promote: {name} version {promotion.version} {result}: {promotion.text}")
    return 0 if promotion.has_alias else 1


class Promotion(NamedTuple):
    """The result of `promote`. `version` is the registered version of the model, and `has_alias` is True if this version now has the alias.

    `text` gives the reason in one line. `test` is the paired test of the previous holder of the alias (first) and the model (second); None
    if they were not compared.
    """

    version: str
    has_alias: bool
    text: str
    test: Paired | None = None


def promote(name: str, registered: str, alias: str, paths: Paths, environment: Environment, *, force: bool) -> Promotion:
    """Register the model that `name` denotes as a version of the registered model `registered`, and give this version `alias` if it is no
    worse than the holder, which is the version that has the alias now.

    A model file that is registered already is not registered again. "No worse" means: not significantly worse in the paired test on the
    prepared test split. With `force`, the new version always gets the alias. Raises Refusal if `registered` or `alias` is not a valid name, if
    MLflow fails, or if the model, or a run of it in MLflow, cannot be found.
    """
    refuse_bad_names(registered, alias)
    find.refuse_missing_store(name, environment)
    with redirect_stdout(sys.stderr):
        candidate, store = read(name, paths, environment), Store(environment)
        store.refuse_other_registry()
        with refusing(name, store):
            logged = find_logged(name, candidate, store, environment)
            holder = existing(lambda: store.client.get_model_version_by_alias(registered, alias))
            is_holder = holder is not None and holder.tags.get(MODEL_TAG) == candidate.digest
        if holder and is_holder:
            return Promotion(holder.version, True, "it had the alias before, so nothing changed")
        test, text = None, "no version had this alias"
        if holder:
            test, text = judged(candidate, f"models:/{registered}/{holder.version}", paths, environment)
        is_no_worse = holder is None or (test is not None and not test.second_is_worse)
        has_alias = is_no_worse or force
        text += "; --force gave it the alias" if force and not is_no_worse else ""
        with refusing(name, store):
            version = register(store, registered, logged, candidate.digest)
            store.client.set_model_version_tag(registered, version, RESULT_TAG, text)
            if has_alias:
                store.client.set_registered_model_alias(registered, alias, version)
    return Promotion(version, has_alias, text, test)


def judged(candidate: ComparedModel, holder: str, paths: Paths, environment: Environment) -> tuple[Paired | None, str]:
    """Return the paired test of the holder of the alias and the candidate, and its result in words.

    If the two cannot be compared, the test is None, and the text gives the reason.
    """
    uncompared = f"it could not be compared with {holder}"
    try:
        champion = read(holder, paths, environment)
        if reason := incomparability(champion.manifest.spec, candidate.manifest.spec):
            return None, f"{uncompared}: {reason}"
        split = EvaluationSplit(champion, paths, Machine.set_up(environment))
        test = paired(split.score(champion), split.score(candidate))
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


def find_logged(name: str, candidate: ComparedModel, store: Store, environment: Environment) -> "LoggedModel":
    """Return the logged model in MLflow with the candidate's model file: that of the named run, else the newest with the same bytes.

    If the run is not in MLflow yet, such as that of the best trial of a search, wait for its mirror, and send the rest.

    Raises Refusal if there is none. A bare file cannot be registered: MLflow serves the logged model of a run, which names its data,
    parameters and commit, and a file has none of these.
    """
    if name.startswith("models:"):
        return find.find_logged(name, store)
    run = candidate.run
    logged = newest_logged(candidate.digest, run.run_ids.values() if run else [name], store, environment)
    if logged is None and run and is_pending(run.folder):
        print(f"promote: sending the run {run.name} to MLflow", flush=True)
        mirror.wait(environment, run.folder)
        if is_pending(run.folder):
            mirror.deliver(run.folder, store)
        logged = newest_logged(candidate.digest, run.run_ids.values(), store, environment)
    if logged is None:
        raise Refusal(
            f"{shown(name)}: MLflow has no run with this model: send its run with `python -m pipeline sync`, record the model of a finished "
            "`dvc repro` with `python -m pipeline summary`, or set MLFLOW_TRACKING_URI to the store that has the run"
        )
    return logged


def newest_logged(digest: str, run_ids: Collection[str], store: Store, environment: Environment) -> "LoggedModel | None":
    """Return the logged model with the SHA-256 `digest`: that of one of the runs, else the newest; None if there is none.

    Raises Refusal if the runs of all such models were deleted.
    """
    experiments = [each.experiment_id for each in store.client.search_experiments()]
    found = store.client.search_logged_models(experiments, filter_string=f"tags.`{MODEL_TAG}` = '{digest}'")
    ready = sorted((each for each in found if str(each.status) == "READY"), key=lambda each: each.creation_timestamp)
    kept = [each for each in ready if each.source_run_id and store.active(each.source_run_id)]
    if ready and not kept:
        raise Refusal(
            f"{digest}: the run of this model was deleted in MLflow: {restoring(environment, 'run', str(ready[-1].source_run_id))}"
        )
    return next((each for each in kept if each.source_run_id in run_ids), kept[-1] if kept else None)


def register(store: Store, registered: str, logged: "LoggedModel", digest: str) -> str:
    """Return the version of `registered` whose model file has the SHA-256 `digest`. If there is none, create it from `logged`."""
    client = store.client
    if existing(lambda: client.get_registered_model(registered)) is None:
        client.create_registered_model(registered)
    versions = client.search_model_versions(f"name='{registered}'")
    if known := next((each for each in versions if each.tags.get(MODEL_TAG) == digest), None):
        return str(known.version)
    source = f"models:/{logged.model_id}"
    with store.as_default():  # where the database of MLflow looks the source up
        version = client.create_model_version(registered, source, logged.source_run_id, tags={MODEL_TAG: digest}, model_id=logged.model_id)
    before = json.loads(logged.tags.get(VERSIONS_TAG, "[]"))
    client.set_logged_model_tags(
        logged.model_id, {VERSIONS_TAG: json.dumps([*before, {"name": registered, "version": version.version}])}
    )  # MLflow's page of the run links to the version by this tag, as after `mlflow.register_model`
    return str(version.version)
