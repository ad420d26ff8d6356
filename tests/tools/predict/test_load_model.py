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
from pipeline import load_model
from pipeline.core.refusal import Refusal
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


def test_one_input_need_not_be_in_a_list_and_an_array_of_images_is_several(write_model: WriteModel) -> None:
    model = load_model(str(write_model()))
    assert len(list(model.predict(Image.new("RGBA", (30, 20))))) == 1
    assert len(list(model.predict(np.zeros((5, 8, 8), np.uint8), batch_size=2, top_k=1))) == 5
    Image.new("L", (8, 8)).save("cat.png")
    assert len(list(model.predict("cat.png"))) == 1


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
