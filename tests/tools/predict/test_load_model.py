"""`load_model`: three lines of Python from a file to class names and probabilities."""

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pipeline
from pipeline import load_ensemble, load_model
from pipeline.__main__ import main
from pipeline.core.refusal import Refusal
from pipeline.inference import model_file
from pipeline.tasks.multi_label.targets import LabelTargets
from tests.imports import TOP
from tests.tools.predict.conftest import CLASSES

WriteModel = Callable[..., Path]


def test_paths_images_and_arrays_give_equal_predictions(write_model: WriteModel) -> None:
    model = load_model(write_model((8, 8, 3)))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save("cat.png")
    predictions = list(model.predict(["cat.png", Path("cat.png"), image, pixels]))
    assert [prediction.input for prediction in predictions] == ["cat.png", "cat.png", "[2]", "[3]"]
    assert len({prediction.label for prediction in predictions}) == 1
    assert all(prediction.probability == pytest.approx(predictions[0].probability, rel=1e-5) for prediction in predictions)
    assert predictions[0].label in CLASSES
    assert predictions[0].top[0] == (predictions[0].label, predictions[0].probability)
    assert sum(probability for _, probability in predictions[0].top) == pytest.approx(1)


def others(first: Path, *changes: dict[str, object]) -> list[Path]:
    """Write further models with the weights of the model file `first`, scaled by 2, 3 and so on, and return their paths."""
    model, manifest = model_file.load(first)
    paths = [first.with_name(f"{scale}.safetensors") for scale in range(2, len(changes) + 2)]
    for scale, (path, change) in enumerate(zip(paths, changes, strict=True), start=2):
        weights = {name: value * -scale for name, value in model.network.state_dict().items()}
        model_file.export(path, weights, manifest.model_copy(update=change))
    return paths


def test_an_ensemble_predicts_the_mean_of_the_probabilities_in_any_order(write_model: WriteModel) -> None:
    first = write_model()
    paths = [first, *others(first, {}, {})]
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    found = [dict(prediction.top) for prediction in load_ensemble(paths).predict(images)]
    each = [[dict(prediction.top) for prediction in load_model(path).predict(images)] for path in paths]
    for mean, *members in zip(found, *each, strict=True):
        assert mean == {name: pytest.approx(np.mean([member[name] for member in members]), rel=1e-5) for name in CLASSES}
    assert [dict(prediction.top) for prediction in load_ensemble(paths[::-1]).predict(images)] == found
    assert [dict(prediction.top) for prediction in load_ensemble(paths[:1]).predict(images)] == each[0]
    together = load_ensemble(paths)
    list(together.predict(images))
    assert not any(module.training for module in together.network.modules())


def test_models_that_are_no_ensemble_are_refused_with_the_difference(write_model: WriteModel, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_model()
    spec = model_file.load(first)[1].spec
    renamed = spec.model_copy(update={"targets": spec.targets.model_copy(update={"classes": ("a", "b", "c")})})
    larger = spec.model_copy(update={"inputs": spec.inputs.model_copy(update={"height": 16, "width": 4})})
    labelled = spec.model_copy(update={"targets": LabelTargets(labels=("a", "b", "c"), thresholds=(0.5, 0.5, 0.5))})
    of_names, of_size, of_precision, of_labels = others(
        first, {"spec": renamed}, {"spec": larger}, {"precision": "bf16"}, {"spec": labelled}
    )
    with pytest.raises(Refusal, match="averages the probabilities of classes, and the task multi_label has no classes"):
        load_ensemble([of_labels, first])
    for path, difference in (
        (of_names, r"image inputs \(8, 8, 1\) and 3 outputs \(ant, bee, .*\), the other .* \(a, b, c\)"),
        (of_size, r"\(8, 8, 1\) .*, the other .* \(16, 4, 1\)"),
        (of_precision, "predicts in bf16, and the other in fp32"),
    ):
        with pytest.raises(Refusal, match=rf"{path.name}: cannot be averaged with {first.name}: .*{difference}"):
            load_ensemble([first, path])
    assert main(["predict", str(first), "--with", str(of_names), "x.png"]) == 2
    assert "cannot be averaged" in capsys.readouterr().err


def test_one_input_need_not_be_in_a_list_and_an_array_of_images_is_several(write_model: WriteModel) -> None:
    model = load_model(str(write_model()))
    assert len(list(model.predict(Image.new("RGBA", (30, 20))))) == 1
    assert len(list(model.predict(np.zeros((5, 8, 8), np.uint8), batch_size=2, top_k=1))) == 5
    Image.new("L", (8, 8)).save("cat.png")
    assert len(list(model.predict("cat.png"))) == 1
    for name in ("batch_size", "top_k"):
        with pytest.raises(Refusal, match=f"{name}: is 0: write 1 or more"):
            list(model.predict("cat.png", **{name: 0}))


def test_a_model_that_drops_the_dimension_of_one_sample_is_refused(write_model: WriteModel) -> None:
    model = load_model(str(write_model()))
    model.network.register_forward_hook(lambda *given: given[-1].squeeze())
    assert len(list(model.predict(np.zeros((2, 8, 8), np.uint8)))) == 2
    with pytest.raises(Refusal, match=r"outputs of shape \(3,\) for a batch of 1: .* call, for example, `flatten\(1\)`"):
        list(model.predict(Image.new("L", (8, 8))))


def noise() -> bytes:
    """Return a JPEG of some kilobytes."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(file, "JPEG")
    return file.getvalue()


UNUSABLE = [
    (np.zeros((9, 8, 1), np.uint8), r"\[0\]: is an array uint8 of shape \(9, 8, 1\), but the model takes uint8 of shape \(8, 8, 1\)"),
    (np.zeros((8, 8, 1)), r"\[0\]: is an array float64"),
    (None, r"\[0\]: is of type NoneType: give a path, a PIL image, or a NumPy array"),
    (Image.new("F", (8, 8)), r"\[0\]: cannot be decoded: has floating-point pixels of unknown scale"),
    (Image.open(io.BytesIO(noise()[:-400])), r"\[0\]: cannot be decoded: image file is truncated"),
    ("absent.png", r"absent\.png: cannot be read: No such file"),
    ("nul\0.png", r"nul\\x00\.png: cannot be read"),
]


def test_an_unusable_value_is_refused_with_its_position(write_model: WriteModel) -> None:
    model = load_model(write_model())
    for value, message in UNUSABLE:
        with pytest.raises(ValueError, match=message):
            list(model.predict([value]))


def test_image_files_are_refused_for_models_of_other_channels_but_arrays_are_read(write_model: WriteModel) -> None:
    model = load_model(write_model((8, 8, 2)))
    assert len(list(model.predict([np.zeros((8, 8, 2), np.uint8)]))) == 1
    with pytest.raises(ValueError, match="takes images of 2 channels, but image files give only 1 or 3: give an array"):
        list(model.predict([Image.new("L", (8, 8))]))


def test_settings_of_the_process_are_as_before(write_model: WriteModel) -> None:
    def settings() -> tuple[object, ...]:
        return (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.get_deterministic_debug_mode(),
            torch.get_num_threads(),
            Image.MAX_IMAGE_PIXELS,
        )

    before = settings()
    for _ in load_model(write_model()).predict([np.zeros((8, 8), np.uint8)]):
        assert settings() == before
    assert settings() == before


def test_an_unknown_device_or_name_is_refused(write_model: WriteModel) -> None:
    with pytest.raises(ValueError, match=r"no CUDA GPU can be used|this machine has"):
        load_model(write_model(), device="cuda:77")
    with pytest.raises(Refusal, match=r"device: should be `auto`, `cpu`, `cuda` or `cuda:N`, not 'gpu'"):
        load_model(write_model(), device="gpu")
    with pytest.raises(AttributeError, match="has no attribute 'load_models'"):
        _ = pipeline.load_models


def test_importing_the_package_imports_nothing_else() -> None:
    line = "import sys, pipeline; print([name for name in sys.modules if name.startswith('pipeline.') or name in ('torch', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", line], cwd=TOP, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_three_lines_of_the_readme_print_a_class_and_its_probability(write_model: WriteModel, capsys) -> None:
    Path("models").mkdir()
    write_model().rename("models/model.safetensors")
    Path("cat.jpg").write_bytes(noise())
    (code,) = re.findall(
        r"```python\n(from pipeline import load_model\n.*?)```", (TOP / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    exec(code, {})  # noqa: S102  # the code of the page
    label, probability = capsys.readouterr().out.split()
    assert label in CLASSES
    assert 1 / 3 < float(probability) < 1


def test_a_model_that_this_checkout_cannot_build_is_named_by_its_file(write_model: WriteModel) -> None:
    model, manifest = model_file.load(write_model())
    unknown = manifest.model_validate(manifest.model_dump(mode="json") | {"params": {**manifest.params, "model": {"name": "gone"}}})
    with pytest.raises(Refusal, match=r"^a\.safetensors: .*there is no model \"gone\""):
        model_file.rebuild(model.network.state_dict(), unknown, Path("a.safetensors"))
