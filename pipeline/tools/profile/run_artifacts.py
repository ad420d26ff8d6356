"""Adds a profile to the run that trained the model file, as artifacts in MLflow."""

import json
import tempfile
from pathlib import Path

from pipeline.core.environment import Environment
from pipeline.core.paths import Paths
from pipeline.core.prepared import Prepared
from pipeline.core.refusal import Refusal
from pipeline.inference import model_file, tensor_file
from pipeline.tools.profile.profile import Profile
from pipeline.tracking import run as tracking
from pipeline.tracking.journal import RunInfo
from pipeline.train.params import TrainParams

FOLDER = "profile"


def refuse_other_run(params: TrainParams, prepared: Prepared, paths: Paths, environment: Environment) -> None:
    """Raise Refusal if no run of this checkout trained the model file, or if it was trained with other parameters or data."""
    remedy = "run `dvc repro` first, or leave out --log-to-run"
    if not environment.tracking:
        raise Refusal("--log-to-run: PIPELINE_TRACKING is false: set it to true, or leave out --log-to-run")
    if not paths.model.exists() or not tracking.journal_of(environment, paths.model):
        raise Refusal(f"--log-to-run: no run of this checkout has trained {paths.model}: {remedy}")
    manifest = model_file.describe(tensor_file.load(paths.model, header_bytes=model_file.HEADER_BYTES)[1], paths.model)
    if manifest.params != params.model_dump(mode="json") or manifest.inputs.get("data") != prepared.digest:
        raise Refusal(f"--log-to-run: {paths.model} was trained with other parameters or data: {remedy}")


def log(profile: Profile, paths: Paths, environment: Environment) -> str | None:
    """Add the text, the numbers, the trace and the memory of `profile` to the run of the model file. Return the name of its journal."""
    with (
        tempfile.TemporaryDirectory(prefix="profile-") as folder,
        tracking.addition(environment, paths.model, info=RunInfo(), stage="profile") as run,
    ):
        trace = Path(folder) / "trace.json.gz"
        profile.traced.write(trace)
        run.artifact(trace, folder=FOLDER)
        run.text("profile.txt", "\n".join(profile.lines()) + "\n", folder=FOLDER)
        run.text("profile.json", json.dumps(profile.record(), indent=2) + "\n", folder=FOLDER)
        run.text("memory.csv", profile.memory_table(), folder=FOLDER)
    return tracking.journal_of(environment, paths.model)
