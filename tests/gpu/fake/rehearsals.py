"""Trainings on a GPU that executes nothing: what PyTorch's CUDA code does without its kernels. test_fake_gpu.py runs this file.

They show what PyTorch's host code refuses or counts: wrong devices and dtypes, operations without an implementation for CUDA or without a
deterministic form, waits of the host, allocations, and the operations that a step puts into streams. What they cannot show is in
docs/decisions/0022-a-gpu-that-executes-nothing.md. All that is read from the GPU is 0, so no step is ever skipped.
"""

import contextlib
import csv
import gc
import itertools
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from pipeline.__main__ import main
from pipeline.core.environment import CaptureMode
from pipeline.core.prepared import Prepared, Split
from pipeline.inference.batches import loader
from pipeline.tasks.classification import train as classification
from pipeline.tasks.language_modeling import train as language_modeling
from pipeline.tasks.multi_label import train as multi_label
from pipeline.tasks.multi_label.targets import LabelTargets
from pipeline.tasks.regression import train as regression
from pipeline.tasks.regression.targets import NumberTargets
from pipeline.tasks.sequence import train as sequence
from pipeline.train import training
from pipeline.train.augment import augmentation as augmenting_images
from pipeline.train.augment.augmentation import Augmentation
from pipeline.train.engine import metrics, step
from pipeline.train.engine.state import EMA
from pipeline.train.group.lanes import Lanes
from pipeline.train.group.processes import ALONE
from pipeline.train.params import TrainParams
from pipeline.train.training import Training
from tests import project, texts
from tests.conftest import preset
from tests.gpu.bare import bare_step
from tests.gpu.fake import library
from tests.gpu.fake.library import Counts
from tests.gpu.presets import BATCH_SIZE, CIFAR, COUNTED, PRECISIONS, PRESETS, STEPS, images, params_of
from tests.hub import models as hub
from tests.laws import test_resuming as resuming
from tests.train.augment import augmenting

if not library.is_preloaded():
    pytest.skip("test_fake_gpu.py runs these with the library of a GPU that executes nothing", allow_module_level=True)

FIRST_WITHOUT_WAITING, FIRST_STEADY = 5, 10
"""Steps before these may wait, and allocate. The last step reports."""
SAVED = 7
Begin = Callable[..., Training]


@pytest.fixture(autouse=True)
def without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let reports have numbers, although all that is read from the GPU is 0, also the number of targets and characters."""
    score = metrics.score

    def scored(predictions, objective, **options) -> dict[str, float]:
        with contextlib.suppress(ZeroDivisionError):
            score(predictions, objective, **options)
        return {"loss": 0.5, **objective.averages({}, 1)}

    def averages(*_: object) -> dict[str, float]:
        return dict.fromkeys(("perplexity", "bits_per_character", "bits_per_byte", "accuracy"), 0.5)

    monkeypatch.setattr(metrics, "score", scored)
    monkeypatch.setattr(language_modeling.Objective, "averages", averages)
    monkeypatch.setattr(sequence.Objective, "averages", lambda *_: {"perplexity": 0.5, "accuracy": 0.5})
    monkeypatch.setattr(classification.Objective, "averages", lambda *_: {"accuracy": 0.5})
    monkeypatch.setattr(regression.Objective, "averages", lambda *_: {"r2": 0.5})
    monkeypatch.setattr(multi_label.Objective, "averages", lambda *_: {"micro_f1": 0.5})
    warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
    yield
    torch.backends.cudnn.enabled = True


def steps(training: Training) -> list[Counts]:
    """Train to the end. Return what each step but the last asks of the GPU. From FIRST_WITHOUT_WAITING on, a wait that PyTorch sees is an error."""
    found = []
    reports = training.reports()
    for number in range(training.state.step + 1, STEPS):
        library.clear()
        torch.cuda.set_sync_debug_mode("error" if number >= FIRST_WITHOUT_WAITING else "default")
        try:
            next(reports)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append(library.counts())
        if number == SAVED:
            assert training.save_now()
    assert len(list(reports)) == 1
    return found


def steady(found: list[Counts]) -> Counts:
    """Return the counts of the steady step with the fewest launches. None may wait or allocate.

    At least half of them must have as few launches: the others begin a new block of batches.
    """
    chosen = found[FIRST_STEADY - 1 :]
    assert [each.waits + each.allocations + each.pinned_allocations for each in chosen] == [0] * len(chosen)
    least = min(chosen, key=lambda each: each.launches)
    assert sum(each.launches == least.launches for each in chosen) >= len(chosen) / 2, [each.launches for each in chosen]
    return least


def rehearse(begin: Begin, params: TrainParams, data: Prepared, *, cudnn: bool = True, graphs: CaptureMode = "off") -> Counts:
    """Train, save, validate, and resume from the saved step to the end. Return what a steady step asks of the GPU."""
    torch.backends.cudnn.enabled = cudnn
    found = steady(steps(begin(params, "work", data, graphs)))
    resumed = begin(params, "work", data, graphs)
    assert resumed.state.step == SAVED
    list(resumed.reports())
    return found


def bare(training: Training) -> Counts:
    """Return what a step of a loop without the pipeline asks of the GPU."""
    step = bare_step(training)
    for _ in range(FIRST_WITHOUT_WAITING):
        step()
    library.clear()
    step()
    return library.counts()


TABLE = Path(os.environ.get("FAKE_GPU_TABLE", os.devnull))


@pytest.fixture(scope="module")
def table() -> Iterator[list[dict[str, str | int]]]:
    """Return the rows of the table of launches, which are written to the file TABLE at the end."""
    rows: list[dict[str, str | int]] = []
    yield rows
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["preset", "precision", "pipeline", "captured", "bare loop"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision_name"), COUNTED)
def test_a_preset_trains_and_its_launches_are_counted_beside_those_of_a_bare_loop(
    begin: Begin, table, name: str, precision_name: str
) -> None:
    data, cudnn = PRESETS[name]
    params = params_of(PRECISIONS[precision_name], name)
    torch.backends.cudnn.enabled = cudnn
    least = bare(begin(params, "bare", data)).launches
    ours, captured = (steady(steps(begin(params, graphs, data, graphs))).launches for graphs in ("off", "on"))
    table.append({"preset": name, "precision": precision_name, "pipeline": ours, "captured": captured, "bare loop": least})


SGD = resuming.SGD
MUON = resuming.MUON
OPTIMIZERS = {"adam": resuming.ADAM, "adamw": resuming.ADAM | {"name": "adamw"}, "sgd": SGD, "muon": MUON}
WIDE_CONVNET = resuming.CONVNET | {"width": 16}


EACH_ONCE = {("fp32", "adam"), ("bf16, skip", "sgd"), ("fp16, skip", "adamw"), ("bf16-true, skip", "muon")}
"""Each precision and each optimizer once: what `make test` trains."""


@pytest.mark.parametrize(
    ("precision_name", "optimizer"),
    [
        pytest.param(*pair, marks=[] if pair in EACH_ONCE else [pytest.mark.slow])
        for pair in itertools.product([*PRECISIONS, "fp16, skip", "bf16-true", "bf16-true, skip"], OPTIMIZERS)
    ],
)
def test_every_optimizer_trains_in_every_precision(begin: Begin, precision_name: str, optimizer: str) -> None:
    chosen, _, skips = precision_name.partition(", ")
    changes = {"model": WIDE_CONVNET, "optimizer": OPTIMIZERS[optimizer], "train.precision": chosen, "train.channels_last": True}
    changes |= {"train.on_nonfinite": "skip"} if skips else {}
    if chosen == "bf16-true":
        if optimizer.startswith("adam"):
            pytest.skip("is refused: bf16 weights lose the small updates of Adam")
        changes |= {"train.ema_decay": 0.0}
    rehearse(begin, params_of(changes), CIFAR)


def test_beside_the_graphs_of_the_compiler_the_update_is_captured(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is not compiled, which would take long."""
    monkeypatch.setattr(training, "compiled", lambda model, _mode, **_: model)
    changes = {"train.precision": "bf16-true", "train.on_nonfinite": "skip"}
    plain, graphs = (params_of({**changes, "train.compile": mode}, "cifar10-speedrun") for mode in ("off", "graphs"))
    before = steady(steps(begin(plain, "plain", CIFAR))).launches
    with monkeypatch.context() as patch:
        patch.setattr(step.Step, "update", lambda *_: (None, None))
        without = steady(steps(begin(plain, "without", CIFAR))).launches
    assert before - without > 100
    assert rehearse(begin, graphs, CIFAR, graphs="on").launches <= without + 10


def test_steps_are_captured_although_freed_memory_fills_the_gpu(begin: Begin) -> None:
    limited = begin(params_of({}, "cifar10-speedrun"), "limited", CIFAR, "on")
    library.gpu().fake_gpu_limit(library.gpu().fake_gpu_used() + 2**31)
    try:
        freed = [torch.empty(2**25, device="cuda", dtype=torch.uint8) for _ in range(2**6 - 1)]
        freed.clear()
        assert steady(steps(limited)).launches < 20
    finally:
        library.gpu().fake_gpu_limit(library.CAPACITY_BYTES)


def test_an_update_that_cannot_be_recorded_goes_on_eagerly(begin: Begin, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    average = EMA.update

    def failing(ema: EMA, weight: torch.Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        average(ema, weight)

    monkeypatch.setattr(EMA, "update", failing)
    for precision in ("bf16", "fp16"):
        assert len(list(begin(params_of({"train.precision": precision}, "cifar10-cnn"), precision, CIFAR, "on").reports())) == STEPS
    assert capsys.readouterr().out.count("which changes no result: too little memory") == 2


def test_the_norm_of_exchanged_gradients_is_that_of_aligned_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU adds the values of a tensor that begins elsewhere in another order."""
    places: list[int] = []
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda tensors, _: places.extend(each.data_ptr() for each in tensors))
    gradient = torch.empty(9, device="cuda")[1:]
    Lanes(ALONE).norm([gradient])
    assert gradient.data_ptr() % 16
    assert [place % 16 for place in places] == [0]
    Lanes(ALONE).norm([gradient], math.inf)
    assert places[1:] == [gradient.data_ptr()], "a maximum needs no copy, which would take the memory of all weights"


CAPTURED = {
    "accumulation": {"train.micro_batch_size": BATCH_SIZE // 4},
    "lanes, streamed": {"train.lanes": 4, "train.precision": "bf16"},
    "muon": {"optimizer": MUON, "train.on_nonfinite": "skip"},
}


@pytest.mark.parametrize("feature", CAPTURED)
def test_a_captured_training_neither_waits_nor_allocates(begin: Begin, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    """A wait within a recording would be an error, too."""
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 0.0 if "streamed" in feature else 1.0)
    found = rehearse(begin, params_of(CAPTURED[feature], "cifar10-cnn"), CIFAR, graphs="on")
    if feature == "accumulation":
        assert found.launches <= 12 + 3 * 4


def test_several_labels_train_captured_and_neither_wait_nor_allocate(begin: Begin) -> None:
    targets = LabelTargets(labels=CIFAR.spec.targets.output_names)
    splits = {name: Split(split.inputs, np.eye(10, dtype=np.uint8)[split.targets]) for name, split in CIFAR.splits.items()}
    data = Prepared(CIFAR.spec.model_copy(update={"targets": targets}), "labels", splits)
    loss = {"name": "binary_focal", "positive_weights": "balanced", "threshold": "tuned", "gamma": 2.0}
    rehearse(begin, params_of({"loss": loss, "train.metric": "valid/micro_f1"}, "cifar10-cnn"), data, graphs="on")


def test_numbers_from_rows_train_captured_and_neither_wait_nor_allocate(begin: Begin) -> None:
    table, targets = PRESETS["table"][0], NumberTargets(columns=("a", "b"), mean=(0.0, 1.0), std=(1.0, 2.0))
    columns = tuple(column.model_copy(update={"knots": ((-1.0, -1.0), (0.5, 0.0), (2.0, 3.0))}) for column in table.spec.inputs.columns)
    splits = {name: Split(split.inputs, split.inputs[:, :2]) for name, split in table.splits.items()}
    spec = table.spec.model_copy(update={"targets": targets, "inputs": table.spec.inputs.model_copy(update={"columns": columns})})
    changes = {"loss": {"name": "huber", "delta": 1.0}, "train.metric": "valid/r2"}
    rehearse(begin, params_of(changes, "table"), Prepared(spec, "numbers", splits), graphs="on")


def wait(outputs: torch.Tensor, _: int) -> torch.Tensor:
    return outputs * float(outputs.detach().sum() < 1e9)


def wait_in_the_recording(outputs: torch.Tensor, call: int) -> torch.Tensor:
    return wait(outputs, call) if call > 2 else outputs * 1.0


def draw_on_the_host(outputs: torch.Tensor, _: int) -> torch.Tensor:
    return outputs * float(torch.rand(()))


OBSTACLES = {
    wait: r"an operation waits for the GPU \(.*rehearsals\.py:\d+\)",
    wait_in_the_recording: "CUDA error: operation not permitted when stream is capturing",
    draw_on_the_host: "the network draws random numbers on the host",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_training_goes_on_eagerly_with_the_reason_if_it_cannot_be_recorded(
    begin: Begin, capsys: pytest.CaptureFixture[str], obstacle: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    """Dropout draws before and after it: a failed recording leaves no trace in PyTorch's allocator and generator."""
    training = begin(params_of({"model": WIDE_CONVNET | {"dropout": 0.5}}), "work", CIFAR, "on")
    calls = itertools.count(1)
    training.state.model.network.register_forward_hook(lambda _module, _inputs, outputs: obstacle(outputs, next(calls)))
    assert len(list(training.reports())) == STEPS
    printed = capsys.readouterr().out
    assert re.findall("not captured as CUDA graphs, which changes no result: " + OBSTACLES[obstacle], printed)


MIXED = {
    "augment.crop_padding": 0,
    "augment.resized_crop": 0.3,
    "augment.brightness": 0.3,
    "augment.contrast": 0.3,
    "augment.saturation": 0.2,
    "augment.cutout": 4,
    "augment.flip": "random",
    "augment.mixup": 0.4,
    "augment.cutmix": 1.0,
}
IN_PARTS = {"train.micro_batch_size": BATCH_SIZE // 4}
FEATURES = {
    "lanes, accumulation": {"train.lanes": 2, **IN_PARTS},
    "mixed, accumulation": {**MIXED, **IN_PARTS},
    "transforms": {"augment.transforms": [{"name": name, **keys} for name, keys in augmenting.TRANSFORMED.items()]},
    "recomputed activations": {"train.activation_checkpointing": True, "model": preset({}, "cifar10-resnet")["model"]},
    "frozen": {"train.freeze": ["0.*"], "model": WIDE_CONVNET},
    "no average, clipped": {"train.ema_decay": 0.0, "train.clip_norm": 1.0},
}


WHERE = [True, pytest.param(False, marks=pytest.mark.slow)]


@pytest.mark.parametrize("resident", WHERE, ids=["resident", "streamed"])
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_trains_wherever_its_data_lies(begin: Begin, monkeypatch, feature: str, resident: bool) -> None:
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 1.0 if resident else 0.0)
    monkeypatch.setattr(augmenting_images, "refuse_unfit", lambda *_: None)  # it compares values, which this GPU does not compute
    rehearse(begin, params_of(FEATURES[feature], "cifar10-cnn"), CIFAR)


TEXTS = {"texts": texts.texts(), "corpus": texts.corpus()}
TEXT_MODELS = {
    "rnn": ("texts", texts.LSTM | {"cell": "rnn"}),
    "swiglu, learned positions": ("texts", texts.TRANSFORMER),
    "language model: gru": ("corpus", texts.LSTM_LANGUAGE_MODEL | {"cell": "gru"}),
    "language model: rotary": ("corpus", texts.TRANSFORMER_LANGUAGE_MODEL),
}


@pytest.mark.parametrize("resident", WHERE, ids=["resident", "streamed"])
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_every_text_model_trains_in_bf16_true_and_wherever_its_data_lies(begin: Begin, monkeypatch, name: str, resident: bool) -> None:
    monkeypatch.setattr(loader, "RESIDENT_SHARE", 1.0 if resident else 0.0)
    data, model = TEXT_MODELS[name]
    true = {"train.precision": "bf16-true", "optimizer": SGD, "train.ema_decay": 0.0}
    changes = {**texts.UNAUGMENTED, "model": model, "train.batch_size": 16, "train.micro_batch_size": 16, **true}
    rehearse(begin, params_of(changes), TEXTS[data], cudnn=False)


# without mistral and modernbert: the library makes their masks for near tokens, and waits
PRETRAINED = {
    **{name: ("images", model) for name, model in hub.TIMM.items()},
    **{name: ("texts", hub.section(name)) for name in ("bert", "distilbert", "roberta", "gpt2", "llama", "qwen2")},
    **{f"language model: {name}": ("corpus", hub.section(name)) for name in hub.DECODERS if name != "mistral"},
    "bert, updates": ("texts", hub.section("bert", lora=True)),
    "language model: llama, updates": ("corpus", hub.section("llama", lora=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_a_model_of_a_library_trains_with_little_more_launches_than_a_bare_loop(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    kind, model = PRETRAINED[name]
    data = CIFAR if kind == "images" else TEXTS[kind]
    changes = {**({} if kind == "images" else texts.UNAUGMENTED), "model": model, "train.batch_size": 16, "train.micro_batch_size": 16}
    if "updates" in name:
        monkeypatch.chdir(tmp_path)
        hub.save(tmp_path, model["architecture"])
    params = params_of({**changes, "train.precision": "bf16", "train.ema_decay": 0.0})
    ours, least = rehearse(begin, params, data).launches, bare(begin(params, "bare", data)).launches
    assert ours <= least + max(8, 0.05 * least), (ours, least)


def release() -> None:
    """Give back what earlier trainings have taken from the GPU."""
    gc.collect()
    torch.cuda.empty_cache()


def reserved(training: Training) -> int:
    """Return the most bytes that the training takes from the GPU."""
    release()
    torch.cuda.reset_peak_memory_stats()
    steps(training)
    return torch.cuda.max_memory_reserved()


@pytest.mark.parametrize("kind", ["images", "corpus"])
def test_a_split_is_held_once_also_while_it_is_moved_to_the_gpu(kind: str) -> None:
    """Half of the free memory is the limit for its size."""
    device, augmentation = torch.device("cuda"), None
    if kind == "images":
        data = images((128, 128, 3), samples=2200)
        settings = params_of({"augment.crop_padding": 4}).augment
        assert settings
        augmentation = Augmentation(settings, data.spec, len(data.train), seed=1, device=device)
        split = data.train
    else:
        split = Split(np.zeros((2**10, 2**15), np.int32), np.zeros((2**10, 0), np.uint8), None, windows=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    held = loader.SplitTensors(split, device, augmentation)
    assert held.resident
    assert held.size_bytes >= 2**27
    assert torch.cuda.max_memory_allocated() - before < 1.4 * held.size_bytes


def test_memory_that_runs_out_halves_the_micro_batch(begin: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    """An allocation is refused in the first step. The training then takes what one takes that begins with half."""
    wide = {"model": WIDE_CONVNET | {"width": 64}, "train.batch_size": 512}
    whole, half = (params_of(wide | {"train.micro_batch_size": size}) for size in (512, 256))
    most, least = reserved(begin(whole, "whole", CIFAR)), reserved(begin(half, "half", CIFAR))
    expected = steady(steps(begin(half, "expected", CIFAR)))
    release()
    library.gpu().fake_gpu_limit((most + least) // 2)
    try:
        training = begin(whole, "limited", CIFAR)
        found = steady(steps(training))
    finally:
        library.gpu().fake_gpu_limit(library.CAPACITY_BYTES)
    assert "train: out of memory at step 1: using micro-batches of 256" in capsys.readouterr().out
    assert training.progress.micro_batch_changes == [{"step": 1, "micro_batch_size": 256}]
    assert found == expected


def test_the_stages_run_and_their_model_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(
        project.make(tmp_path / "project", {"train.steps": 20, "train.report_every_steps": 20, "train.validate_every_steps": 20})
    )
    monkeypatch.setenv("PIPELINE_DEVICE", "cuda")
    monkeypatch.setenv("PIPELINE_TRACKING", "false")
    PIL.Image.new("L", (8, 8)).save("image.png")
    model = "models/model.safetensors"
    for words in (["prepare"], ["train"], ["evaluate"], ["predict", model, "image.png"], ["verify", model]):
        assert main(words) == 0, words
    output = capsys.readouterr().out
    assert "on cuda:0 (NVIDIA H100 that executes nothing) in bf16" in output
    assert '"class": "0"' in output
    assert "verify: machine  equal    NVIDIA H100 that executes nothing" in output


FAMILIES = [
    *("resnet18", "squeezenet1_1", "densenet121", "googlenet", "shufflenet_v2_x0_5", "efficientnet_b0"),
    *("convnext_tiny", "swin_t", "swin_v2_t", "vit_b_16", "maxvit_t", "inception_v3"),
]
"""Without mobilenet, mnasnet and regnet: the preset cifar10-mobilenet has their operations."""
LARGE = {"vit_b_16": 224, "maxvit_t": 224, "inception_v3": 299}
"""The side of the images that an architecture needs; 64 is enough for the others."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_of_torchvision_trains(begin: Begin, architecture: str) -> None:
    side = LARGE.get(architecture, 64)
    model = {"name": "torchvision", "weights": None, "architecture": architecture, "stem": "original", "pretrained": None}
    changes = {"model": model, "train.batch_size": 8, "train.micro_batch_size": 8}
    steady(steps(begin(params_of(changes, "cifar10-mobilenet"), "work", images((side, side, 3), 40))))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # whatever a compiler warns of
@pytest.mark.parametrize("name", ["digits", "cifar10-mlp", "cifar10-resnet", "cifar10-speedrun", "shakespeare-transformer"])
def test_a_preset_is_compiled_as_one_graph(begin: Begin, name: str) -> None:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    data, _ = PRESETS[name]
    precision_of = {} if name == "cifar10-speedrun" else {"train.precision": "bf16"}  # that of the speedrun is bf16-true
    training = begin(params_of({"train.compile": "default", **precision_of}, name), "work", data)
    compiled = steady(steps(training)).launches
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"]), dict(counters["recompiles"])) == (1, {}, {})
    assert compiled <= bare(begin(params_of(precision_of, name), "bare", data)).launches
