"""Small models of the libraries timm and transformers, as sections `model`."""

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pipeline.models import transformers as of_transformers

os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class Late:
    """A library that is imported when it is first used: each process that runs tests imports this module, and pytest asks it for marks of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self.name), name)


peft, timm, transformers = map(Late, ("peft", "timm", "transformers"))
TIMM = {
    name: {"name": "timm", "weights": None, "architecture": name, "normalization": "data", "dropout": 0.0, "drop_path": 0.1}
    for name in ("test_vit", "test_resnet", "test_convnext", "test_efficientnet", "test_byobnet")
}
"""Five families."""
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 500}
ENCODERS, DECODERS = of_transformers.ENCODERS, of_transformers.DECODERS
NARROW = {**WIDTHS, "num_key_value_heads": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": WIDTHS,
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 500},
    "electra": {**WIDTHS, "embedding_size": 16},
    "modernbert": {
        **WIDTHS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "local_attention": 4,
    },
    "roberta": WIDTHS,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": WIDTHS,
    "llama": {**WIDTHS, "num_key_value_heads": 2, "head_dim": 16},
    "mistral": {**NARROW, "head_dim": 16, "sliding_window": 4},
    "olmo2": {**NARROW, "pad_token_id": 0, "eos_token_id": 2},
    "phi": {**WIDTHS, "num_key_value_heads": 2},
    "qwen2": NARROW,
    "qwen3": {**NARROW, "head_dim": 16},
    "smollm3": {**NARROW, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
LAYERS = {"bert": ["query", "value"], "gpt2": ["c_attn"], "llama": ["q_proj"], "qwen2": ["all-linear"]}
WITHOUT_DROPOUT = {
    **dict.fromkeys(("bert", "electra", "roberta"), dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)),
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}


def section(architecture: str, *, lora: bool = False, weights: bool = False) -> dict[str, Any]:
    """Return the section `model` for a small model of transformers. It begins with the weights that `save` has saved, and must, with LoRA."""
    updates = {"rank": 4, "alpha": 8.0, "dropout": 0.1, "layers": LAYERS[architecture]} if lora else None
    return {
        "name": "transformers",
        "weights": architecture if weights or lora else None,
        "architecture": architecture,
        "config": CONFIGS[architecture],
        "lora": updates,
    }


def save(folder: Path, architecture: str, *, task: str = "", **changes: Any) -> Any:
    """Save a model with random weights, as `save_pretrained` does, below `folder`, a checkout. Return the model, or that with the head of `task`."""
    config = transformers.AutoConfig.for_model(architecture, **{**CONFIGS[architecture], **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModel{task}").from_config(config)
    model.save_pretrained(folder / "data/weights" / architecture)
    return model


def save_timm(folder: Path, architecture: str) -> Any:
    """Save a model of timm with random weights for 1000 classes, as timm publishes them. Return the model."""
    torch.manual_seed(0)
    model = timm.create_model(architecture)
    target = folder / "data/weights" / architecture
    target.mkdir(parents=True)
    save_file(model.state_dict(), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps({"architecture": architecture}))
    return model
