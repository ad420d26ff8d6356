"""Compares everything that determines a model with the current checkout and machine; causes come before their effects."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.prepared import Prepared
from pipeline.engine import model_file
from pipeline.engine.classifier import Classifier
from pipeline.engine.model_file import Manifest
from pipeline.io import files, tensor_file
from pipeline.io.tensor_file import Damaged, Tensors
from pipeline.params.document import Document
from pipeline.params.evaluate import EvaluateParams
from pipeline.params.load import load, with_lines
from pipeline.params.train import TrainParams
from pipeline.paths import Paths
from pipeline.refusal import Refusal
from pipeline.reports import recorded
from pipeline.runtime.environment import Environment
from pipeline.runtime.machine import Machine
from pipeline.stages import evaluate
from pipeline.tracking import provenance, revision, run_description
from pipeline.verification import consistency, digests
from pipeline.verification.comparison import NOTHING, UNKNOWN, Comparison, Places, short
from pipeline.verification.retraining import retrain
from pipeline.verification.subject import Record, Subject

COMMIT = {"git.commit": "commit", "git.difference": "changes"}


@dataclass(frozen=True)
class Verification:
    """The verification of one model in one checkout on one machine."""

    subject: Subject
    paths: Paths
    environment: Environment

    def comparisons(self, *, again: bool) -> Iterator[Comparison]:
        """Yield the comparisons in order; with `again`, also train again and compare the weights.

        A later comparison assumes that the earlier ones were equal: stop at the first difference.
        """
        model, record = self.subject.model, self.subject.record
        if record:
            yield of_run(record, model)
        try:
            weights, metadata = tensor_file.load(model, header_bytes=model_file.HEADER_BYTES)
        except Damaged as damaged:
            yield of_file(model, expected=damaged.claimed, found=damaged.found)
            return
        whole = tensor_file.digest(weights, metadata)
        yield of_file(model, expected=whole, found=whole)
        manifest = model_file.describe(metadata, model)
        here = Machine.claim(self.environment)
        yield from self.of_inputs(manifest, here)
        if record:
            yield from of_commit(record, self.environment)
        prepared = Prepared.open(self.paths.prepared)
        yield consistency.of_manifest(manifest, prepared, here)
        yield from self.of_scores(weights, manifest, prepared, here)
        if again:
            yield from self.of_training(weights, manifest, prepared, here)

    def of_inputs(self, manifest: Manifest, here: Machine) -> Iterator[Comparison]:
        """Compare the digests of data, code and lock, the parameters and the machine with those in the model file."""
        for digested in digests.of_checkout(self.paths, manifest):
            name, said, found = digested()
            places = Places("the file", "this checkout (`dvc status train` names what changed)")
            yield Comparison.of_texts(name, said, places, expected=manifest.inputs.get(name, NOTHING), found=found)
        path = str(self.paths.params)
        params = load(Document.read(self.paths.params), TrainParams).model_dump(mode="json")
        yield Comparison.of_values("params", path, Places("the file", path), expected=manifest.params, found=params)
        fingerprint = here.fingerprint()
        said = f"{here.name}, {here.threads} threads, torch {fingerprint['libraries']['torch']}"
        yield Comparison.of_values("machine", said, Places("the file", "this machine"), expected=manifest.fingerprint, found=fingerprint)

    def of_scores(self, weights: Tensors, manifest: Manifest, prepared: Prepared, here: Machine) -> Iterator[Comparison]:
        """Evaluate the model again and compare the scores with `metrics/evaluate.json` and, for a run, with its journal."""
        path, model = self.paths.metrics / "evaluate.json", self.subject.model
        expected, of = recorded.read(path)
        found = self.score(model_file.rebuild(weights, manifest, model), manifest, prepared, here)
        said = f"test accuracy {found['accuracy']:.4f} on {found['samples']} samples"
        place = str(path) if of == recorded.label(model) else f"{path}, which is of another model"
        yield Comparison.of_values("score", said, Places(place, "this evaluation"), expected=expected, found=found)
        record = self.subject.record
        if record:
            named = run_description.test_metrics(found) if record.scores else {}
            said = f"{len(named)} numbers of the journal" if named else "none in the journal: the run was not evaluated"
            yield Comparison.of_values("scores", said, Places("the journal", "this evaluation"), expected=record.scores, found=named)

    def score(self, classifier: Classifier, manifest: Manifest, prepared: Prepared, here: Machine) -> dict[str, Any]:
        """Return the scores that the stage evaluate would write. Raises Refusal where that stage does."""
        document = Document.read(self.paths.params)
        try:
            return evaluate.judge(classifier, manifest, prepared, here, load(document, EvaluateParams))[1]
        except Refusal as refusal:
            raise with_lines(document, refusal) from None

    def of_training(self, weights: Tensors, manifest: Manifest, prepared: Prepared, here: Machine) -> Iterator[Comparison]:
        """Train again and compare weights, manifest and the bytes of the exported file."""
        with tempfile.TemporaryDirectory(prefix="verify-") as folder:
            outcome = retrain(manifest.train_params, prepared, here, Path(folder), switches=manifest.switches)
            anew = manifest.model_copy(update=outcome.manifest)
            before, after = manifest.model_dump(mode="json"), anew.model_dump(mode="json")
            places = Places("the file", "the new training")
            yield Comparison.of_weights("weights", f"{len(weights)} tensors, trained anew", expected=weights, found=outcome.weights)
            yield Comparison.of_values("training", f"exported at step {anew.step}", places, expected=before, found=after)
            copy = Path(folder) / self.subject.model.name
            model_file.export(copy, outcome.weights, anew)
            digest = files.digest(self.subject.model)
            yield Comparison.of_texts("bytes", "the whole file", places, expected=digest, found=files.digest(copy))


def of_file(model: Path, *, expected: str, found: str) -> Comparison:
    """Compare the digest that the model file holds with the digest of its contents."""
    places = Places("the file", "its contents", remedy="it was damaged, or changed by hand")
    return Comparison.of_texts("file", str(model), places, expected=expected, found=found)


def of_run(record: Record, model: Path) -> Comparison:
    """Compare the digest of the model file with that of the run's model. Raises Refusal where the file is missing."""
    if not model.is_file():
        raise Refusal(
            f"{model}: is missing, and the journal's copy for {record.name} went to MLflow: check out the run's commit, and `dvc checkout`"
        )
    remedy = "another run's model, or a damaged one: check out the run's commit, and `dvc checkout`"
    places = Places("the journal", str(model), remedy=remedy)
    return Comparison.of_texts("run", record.name, places, expected=record.model_digest, found=files.digest(model))


def of_commit(record: Record, environment: Environment) -> Iterator[Comparison]:
    """Compare the commit and the uncommitted changes in the journal with those of the checkout.

    A value that the journal records as unknown counts as a difference. A commit that adds only results counts as equal.
    """
    here = provenance.gather(environment)
    for fact, name in COMMIT.items():
        expected, found, places = record.provenance.get(fact, NOTHING), here.get(fact, NOTHING), Places("the journal", "this checkout")
        if expected.startswith(UNKNOWN):
            yield Comparison(name, "git", places.sides(expected, found))
        elif revision.differ_in_results_only(expected, found):
            yield Comparison(name, f"git ({short(found)}, which adds results only)", None)
        else:
            yield Comparison.of_texts(name, "git", places, expected=expected, found=found)
