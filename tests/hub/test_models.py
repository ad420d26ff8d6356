"""Models of timm and transformers: what the libraries compute themselves, from weights that they have saved, in full or by LoRA."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pipeline.core.refusal import Refusal
from pipeline.core.registry import MODELS
from pipeline.evaluate.generation import GenerationSettings, generate
from pipeline.inference import model_file
from tests import texts
from tests.gpu.presets import images
from tests.hub import models
from tests.hub.models import peft, timm, transformers
from tests.specs import text_spec
from tests.train.engine.building import begin, run, steps

IMAGES = images((32, 32, 3), samples=60)
COUNT, BATCH_SIZE = 5, 8
PLAIN = {
    "schedule": {"name": "constant", "warmup_ratio": 0.0},
    "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.0,
    "train.batch_size": BATCH_SIZE,
    "train.micro_batch_size": BATCH_SIZE,
    "train.ema_decay": 0.0,
    "train.clip_norm": None,
    "train.export_weights": "last",
    "train.precision": "fp32",
    **texts.UNAUGMENTED,
    **steps(COUNT, 1),
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(training: Any, precision: str = "fp32") -> model_file.Model:
    """Return the model as it is in the model file, for predictions."""
    weights, step = training.exported()
    manifest = model_file.Manifest(
        params=training.params.model_dump(mode="json"),
        spec=training.prepared.spec,
        precision=precision,
        step=step,
        switches=[],
        inputs={"data": "", "code": "", "lock": ""},
        fingerprint={},
    )
    model_file.export(Path("model.safetensors"), weights, manifest)
    return model_file.load(Path("model.safetensors"))[0]


def some(architectures: Iterable[str], *quick: str) -> list[Any]:
    """Return parameters of a test: all but `quick` run in the slow tier only."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in architectures]


@pytest.mark.parametrize("architecture", some(models.TIMM, "test_vit", "test_resnet"))
def test_a_model_of_timm_continues_from_published_weights_and_has_the_logits_of_timm(
    train_params, checkout: Path, capsys: pytest.CaptureFixture[str], architecture: str
) -> None:
    published = models.save_timm(checkout, architecture)
    section = {**models.TIMM[architecture], "weights": architecture, "normalization": "pretrained", "drop_path": 0.0}
    training = begin(train_params({**PLAIN, "model": section, "optimizer.layer_decay": 0.7}), IMAGES)
    tensors = len(published.state_dict())
    assert f"train: {tensors - 2} of {tensors} tensors start from data/weights/{architecture}" in capsys.readouterr().out
    run(training)
    weights, _ = training.exported()
    own = timm.create_model(architecture, num_classes=10, **({"img_size": 32} if "vit" in architecture else {})).eval()
    own.load_state_dict(weights)
    pixels = torch.from_numpy(IMAGES.splits["valid"].inputs[:6])
    config = timm.data.resolve_data_config({}, model=own)
    mean, std = (torch.tensor(config[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(exported(training)(pixels), own((pixels.permute(0, 3, 1, 2) / 255 - mean) / std), rtol=0, atol=1e-5)


def library_model(architecture: str, task: str) -> Any:
    """Return a model of the library for the classes or the tokens of `tests.texts`. It pads with token 0, or as it was trained."""
    config = transformers.AutoConfig.for_model(architecture, **models.CONFIGS[architecture], num_labels=len(texts.CLASSES))
    config.pad_token_id = config.pad_token_id or 0
    return getattr(transformers, f"AutoModelFor{task}").from_config(config)


@pytest.mark.parametrize("architecture", some(models.CONFIGS, "bert", "llama"))
def test_a_classifier_learns_as_in_a_loop_of_the_library(train_params, checkout: Path, architecture: str) -> None:
    """The padding of short texts changes nothing."""
    models.save(checkout, architecture)
    data, section = texts.texts(), models.section(architecture, weights=True)
    section["config"] = {**section["config"], **models.WITHOUT_DROPOUT.get(architecture, {})}
    training = begin(train_params({**PLAIN, "model": section}), data)
    own = library_model(architecture, "SequenceClassification")
    own.load_state_dict(training.state.model.network.model.state_dict())
    batches = [next(batch.parts(BATCH_SIZE)) for batch, _ in zip(training.batches(0), range(COUNT), strict=False)]
    found = [report.metrics["train/objective"] for report in run(training)]
    assert found == pytest.approx(losses(own.eval(), batches), abs=1e-4)
    rows = torch.from_numpy(data.splits["valid"].inputs)
    with torch.no_grad():
        expected = own(**padded(own, rows)).logits
        torch.testing.assert_close(exported(training)(rows), expected, rtol=0, atol=1e-4)


def padded(model: Any, rows: Tensor) -> dict[str, Tensor]:
    """Return the arguments of a model of the library for rows of texts that end in 0."""
    return {"input_ids": rows.masked_fill(rows == 0, model.config.pad_token_id), "attention_mask": rows != 0}


def losses(model: Any, batches: list[Any], *, whole: bool = False) -> list[float]:
    """Train `model` on the batches, as a user of the library would, and return the losses."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    found = []
    for inputs, targets in batches:
        logits: Tensor = model(**({"input_ids": inputs} if whole else padded(model, inputs))).logits
        loss = cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses old names of transformers
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("architecture", some(["gpt2", "llama", "qwen2"], "gpt2"))
def test_a_language_model_learns_by_lora_as_with_peft_and_continues_texts_as_the_library(
    train_params, checkout: Path, architecture: str
) -> None:
    base = models.save(checkout, architecture, task="ForCausalLM")
    section = models.section(architecture, lora=True)
    section["lora"] = {**section["lora"], "dropout": 0.0}
    section["config"] = {**section["config"], **models.WITHOUT_DROPOUT.get(architecture, {})}
    training = begin(train_params({**PLAIN, "model": section, "train.metric": "valid/perplexity"}), texts.corpus())
    layers = section["lora"]["layers"]
    config = peft.LoraConfig(r=4, lora_alpha=8.0, target_modules="all-linear" if layers == ["all-linear"] else layers)
    own = peft.get_peft_model(base.eval(), config)
    trained = training.state.model.network.model.state_dict()
    own.base_model.model.load_state_dict(trained)
    checkpointed = [name for name in training.state.tensors() if name.startswith("network/")]
    assert checkpointed
    assert all(".lora_" in name for name in checkpointed), "the weights of the base are not in checkpoints"
    batches = [next(batch.parts(BATCH_SIZE)) for batch, _ in zip(training.batches(0), range(COUNT), strict=False)]
    number = training.prepared.spec.num_outputs
    known = Known(own, number)
    found = [report.metrics["train/objective"] for report in run(training)]
    assert found == pytest.approx(losses(known, batches, whole=True), abs=1e-4)
    model, merged = exported(training), own.merge_and_unload()
    prompt = [3, 4, 5]
    drawn = list(
        generate(
            model,
            prompt,
            tokenizer=training.prepared.spec.inputs.tokenizer,
            settings=GenerationSettings(0.0, None, None, length=20, seed=1),
        )
    )
    tokens = prompt[:]
    for token in drawn:
        with torch.no_grad():
            logits = merged(input_ids=torch.tensor([tokens])).logits[0, -1, :number]
        logits[:2] = -torch.inf  # padding and unknown
        assert token == int(logits.argmax())
        tokens.append(token)
    assert drawn


@pytest.mark.parametrize("architecture", some(models.DECODERS, "gpt2", "llama"))
def test_a_language_model_has_the_logits_of_the_library_at_once_and_token_by_token(train_params, architecture: str) -> None:
    """Texts are longer than the windows of those models that attend to near tokens."""
    network: Any = train_params({"model": models.section(architecture)}).model.build(text_spec()).eval()
    rows = torch.arange(3, 11, dtype=torch.int32).repeat(2, 1)
    with torch.no_grad():
        expected = network.model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[..., : network.num_tokens]
        torch.testing.assert_close(network(rows), expected, rtol=0, atol=1e-5)
        cache, last = None, None
        for tokens in (rows[:, :4], *rows[:, 4:].split(1, dim=1)):
            last, cache = network.step(tokens, cache)
    torch.testing.assert_close(last, expected[:, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_the_last_layer_of_another_task_is_left_out_although_it_has_as_many_classes(
    train_params, checkout: Path, capsys: pytest.CaptureFixture[str], lora: bool
) -> None:
    models.save(checkout, "bert", task="ForSequenceClassification", num_labels=len(texts.CLASSES))
    training = begin(train_params({**PLAIN, "model": models.section("bert", lora=lora, weights=True)}), texts.texts())
    assert "39 of 41 tensors start from data/weights/bert" in capsys.readouterr().out
    assert "model.classifier.weight" in training.state.trained_names


def test_weights_of_which_a_file_is_missing_are_refused(train_params, checkout: Path) -> None:
    models.save(checkout, "bert").save_pretrained(checkout / "data/weights/bert", max_shard_size="50KB")
    (checkout / "data/weights/bert/model.safetensors").unlink()
    params = train_params({**PLAIN, "model": models.section("bert", weights=True)})
    begin(params, texts.texts())
    (checkout / "data/weights/bert/model-00002-of-00004.safetensors").unlink()
    with pytest.raises(Refusal, match=r"model\.weights: data/weights/bert: has 3 of the 4 files of its weights"):
        begin(params, texts.texts())


class Known(torch.nn.Module):
    """The logits of the tokens that the tokenizer has."""

    def __init__(self, model: Any, number: int) -> None:
        super().__init__()
        self.model, self.number = model, number

    def forward(self, **inputs: Any) -> Any:
        result = self.model(**inputs)
        result.logits = result.logits[..., : self.number]
        return result


BERT, VIT = models.section("bert"), models.TIMM["test_vit"]
BAD = {
    "an unknown architecture of timm": ({**VIT, "architecture": "test_vitt"}, "the nearest names are `test_vit`"),
    "unknown weights of timm": ({**VIT, "architecture": "test_vit.r161_in1k"}, "did you mean `test_vit.r160_in1k`?"),
    "an unknown architecture of transformers": ({**BERT, "architecture": "berd"}, "did you mean `bert`?"),
}


@pytest.mark.parametrize(("section", "message"), BAD.values(), ids=BAD)
def test_settings_of_no_model_are_refused(train_params, section: dict[str, Any], message: str) -> None:
    with pytest.raises((Refusal, ValueError), match=message):
        train_params({"model": section})


MISFITS = {
    "fewer tokens than the tokenizer": (
        texts.texts,
        {**BERT, "config": {**BERT["config"], "vocab_size": 8}},
        "the model has 8 tokens and the tokenizer 11",
    ),
    "fewer positions than the texts": (
        texts.texts,
        {**BERT, "config": {**BERT["config"], "max_position_embeddings": 6}},
        "source.max_length: bert has 6 positions: write at most 6, not 12",
    ),
    "an unknown key": (texts.texts, {**BERT, "config": {"hiden_size": 64}}, r"model\.config\.hiden_size: .* did you mean `hidden_size`"),
    "quantized weights": (texts.texts, {**BERT, "config": {"quantization_config": {"quant_method": "gptq"}}}, "has quantized weights"),
    "updates of shared weights": (
        texts.corpus,
        {**models.section("gpt2"), "weights": None, "lora": {"rank": 1, "alpha": 1.0, "dropout": 0.0, "layers": ["lm_head"]}},
        "model.lora.layers: .* shares its weights with another layer",
    ),
    "a classifier of texts of images": (lambda: IMAGES, BERT, "does not accept inputs of the kind image"),
    "an encoder that continues texts": (
        texts.corpus,
        models.section("distilbert"),
        "distilbert sees the whole text, so it cannot predict the next token",
    ),
    "layers that the model does not have": (
        texts.texts,
        {**models.section("bert", lora=True), "lora": {"rank": 1, "alpha": 1.0, "dropout": 0.0, "layers": ["qry"]}},
        "model.lora.layers: .*qry",
    ),
}


@pytest.mark.parametrize(("data", "section", "message"), MISFITS.values(), ids=MISFITS)
def test_a_model_that_does_not_fit_the_data_or_its_weights_is_refused(train_params, checkout: Path, data, section, message: str) -> None:
    models.save(checkout, "bert")
    with pytest.raises(Refusal, match=message):
        begin(train_params({**PLAIN, "model": section}), data())


def test_updates_of_random_weights_are_refused(train_params) -> None:
    """They would leave a random network as it is."""
    params = train_params({"model": {**models.section("bert", lora=True), "weights": None}})
    with pytest.raises(Refusal, match=r"model\.lora: updates pretrained weights: write the name of their folder"):
        params.model.refuse_missing_weights()


@pytest.mark.parametrize(
    ("library", "module", "version", "place", "section"),
    [
        ("timm", "timm", "VERSION", "test: model.architecture", VIT),
        ("transformers", "transformers", "VERSION", "model.name", BERT),
        ("peft", "transformers", "PEFT_VERSION", "model.lora", models.section("bert", lora=True)),
    ],
    ids=["timm", "transformers", "peft"],
)
def test_another_version_of_a_library_is_refused(
    train_params, monkeypatch: pytest.MonkeyPatch, library: str, module: str, version: str, place: str, section: dict[str, Any]
) -> None:
    def build() -> None:
        model = train_params({"model": section}).model
        model.add_updates(model.build(text_spec(classes=("a", "b"))), frozenset())

    monkeypatch.setattr(MODELS.module(module), version, "1.0.0")
    with pytest.raises(Refusal, match=rf"^{place}: this model needs {library} 1\.0\.0, but [\d.]+ is installed: run `make setup-hub`$"):
        build()


def test_the_versions_are_those_of_the_lock() -> None:
    from pipeline.models import timm as of_timm
    from pipeline.models import transformers as of_transformers
    from tests.imports import TOP

    lock = (TOP / "locks/hub.lock").read_text()
    for name, version in {"timm": of_timm.VERSION, "transformers": of_transformers.VERSION, "peft": of_transformers.PEFT_VERSION}.items():
        assert f"\n{name}=={version} " in lock, f"write the version of locks/hub.lock into pipeline/models/, beside the library {name}"
