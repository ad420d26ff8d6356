"""Text models of the library transformers: classifiers and causal language models, with random or pretrained weights, in full or by LoRA."""

import warnings
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import Field, PositiveFloat, field_validator
from torch import Tensor, nn

from pipeline.core import untrusted
from pipeline.core.refusal import Refusal, listed
from pipeline.core.section import FreeMapping, Section, Share, suggestion
from pipeline.core.spec import Spec
from pipeline.inference.networks import build_on_meta
from pipeline.inference.params import ModelSettings, library
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text.first_layer import attended, indices

VERSION, PEFT_VERSION = "5.24.0", "0.21.2"
"""The versions in locks/hub.lock. They stand here because they decide results, so that DVC and a training's identity know them."""
ENCODERS = ("bert", "distilbert", "electra", "modernbert", "roberta")
DECODERS = ("gpt2", "gpt_neox", "llama", "mistral", "olmo2", "phi", "qwen2", "qwen3", "smollm3")
"""The architectures whose outputs a test compares with those of the library. Others may need masks that this module does not make."""
IGNORED = frozenset(
    ("architectures", "transformers_version", "dtype", "id2label", "label2id", "problem_type", "use_cache", "model_type", "num_labels")
)
"""Keys of a configuration that do not describe the network."""


ATTENTION = "sdpa_without_mask"
"""torch's attention, for which the library makes no masks. To find whether it needs one, it would look at values, and make the host wait."""


def transformers() -> Any:
    module = library("transformers", VERSION, "model.name: ")
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    module.AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


class Lora(Section):
    """Low-rank adaptation (Hu et al., 2021, https://arxiv.org/abs/2106.09685) by the library peft: an update of rank `rank` is trained for each
    of some linear layers, whose own weights stay as they are. The model file has the sums of both.
    """

    rank: Annotated[int, Field(gt=0, le=1024)]
    """Rank of the update."""
    alpha: PositiveFloat
    """The update is multiplied by `alpha / rank`."""
    dropout: Share
    """Dropout probability of the input of the update."""
    layers: Annotated[list[str], Field(min_length=1)]
    """The ends of the names of the layers, such as `query`, or `all-linear` for all but the last one."""


class Settings(ModelSettings):
    name: Literal["transformers"]
    architecture: str
    """The `model_type` of a configuration of transformers: bert, gpt2, llama, ..."""
    config: FreeMapping
    """The values of the configuration that differ from the library's defaults for the architecture: `set model=transformers:NAME` copies them
    from config.json."""
    lora: Lora | None
    """Train low-rank updates (LoRA) instead of the weights, with the keys `rank`, `alpha` (the update is multiplied by alpha / rank), `dropout` of
    its input, and `layers`, the ends of the names of the layers; null to train the weights. What the files of `model.weights` do not have, such
    as a new last layer, is always trained."""

    RECOMMENDED: ClassVar = {
        "architecture": "distilbert",
        "config": {"n_layers": 2, "dim": 128, "hidden_dim": 512, "n_heads": 4},
        "lora": None,
    }

    @field_validator("architecture")
    @classmethod
    def exists(cls, architecture: str) -> str:
        if architecture not in (known := (*ENCODERS, *DECODERS)):
            raise ValueError(f"this pipeline has no architecture {architecture!r} of transformers: {suggestion(architecture, known)}")
        return architecture

    @property
    def title(self) -> str:
        return self.architecture

    def build(self, spec: Spec) -> nn.Module:
        texts = TextInputs.of(spec)
        causal = spec.targets.stored == "windows"
        if causal and self.architecture not in DECODERS:
            raise Refusal(
                f"model.architecture: {self.architecture} sees the whole text, so it cannot predict the next token: choose one of {', '.join(DECODERS)}"
            )
        config = configuration(self.architecture, self.config)
        self.refuse_misfit(config, texts)
        config.num_labels, config.use_cache = spec.num_outputs, False
        automatic = transformers().AutoModelForCausalLM if causal else transformers().AutoModelForSequenceClassification
        try:
            model = automatic.from_config(config, attn_implementation="sdpa" if is_local(config) else ATTENTION, dtype=torch.float32)
        except Exception as error:  # the library checks few of the values of a configuration
            if "meta" in str(error):
                raise  # the network cannot be built without memory
            raise Refusal(
                f"model.config: no {self.architecture} can be built from it ({untrusted.reason(error)}): correct its values"
            ) from None
        return LanguageModel(model, texts) if causal else TextClassifier(model, texts)

    def refuse_misfit(self, config: Any, texts: TextInputs) -> None:
        """Raise Refusal if texts are too long or have too many tokens for the model."""
        if config.vocab_size < texts.num_tokens:
            raise Refusal(
                f"model.config: the model has {config.vocab_size} tokens and the tokenizer {texts.num_tokens}: choose the tokenizer of the model "
                "(source.tokenizer: pretrained), or raise model.config.vocab_size"
            )
        positions = longest_text(config)
        if positions is not None and texts.length > positions:
            raise Refusal(
                f"source.max_length: {self.architecture} has {positions} positions: write at most {positions}, not {texts.length}"
            )

    def adapted(self, tensors: dict[str, Tensor], spec: Spec) -> dict[str, Tensor]:
        network: Any = build_on_meta(self, spec) or self.build(spec)
        loaded, info = type(network.model).from_pretrained(
            None,
            config=network.model.config,
            state_dict=tensors,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        missing = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
        # the head may be missing, and BERT's pooling before it
        body = [name for name in missing if name.startswith(f"{loaded.base_model_prefix}.") and ".pooler." not in name]
        if body:
            raise RuntimeError(f"they lack {listed(sorted(body), 3)}")
        return {f"model.{name}": tensor for name, tensor in loaded.state_dict().items() if name not in missing}

    def refuse_missing_weights(self) -> None:
        if self.lora and self.weights is None:
            raise Refusal("model.lora: updates pretrained weights: write the name of their folder as model.weights, or `lora: null`")

    def add_updates(self, network: nn.Module, untrained: frozenset[str]) -> None:
        if self.lora:
            add_lora(network, self.lora, untrained)

    def merged(self, tensors: dict[str, Tensor], spec: Spec) -> dict[str, Tensor]:
        if self.lora is None or not tensors:
            return tensors
        network = self.build(spec)
        add_lora(network, self.lora, frozenset())
        network.load_state_dict(tensors)
        for layer in network.modules():
            if hasattr(layer, "lora_A"):
                cast("Any", layer).merge()
        merged = {name: tensor.to(tensors[name].dtype) for name, tensor in network.state_dict().items() if ".lora_" not in name}
        return {name.replace(".base_layer.", "."): tensor for name, tensor in merged.items()}


def configuration(architecture: str, values: dict[str, Any]) -> Any:
    """Return the configuration of the library with these values. Raises Refusal if they are invalid, or if a key is unknown."""
    if "quantization_config" in values:
        raise Refusal("model.config: has quantized weights, which cannot be trained: choose a model in bf16 or fp32")
    for_model = transformers().AutoConfig.for_model
    try:
        defaults, config = for_model(architecture).to_dict(), for_model(architecture, **values)
    except Exception as error:  # the classes of configurations raise exceptions of many types
        raise Refusal(f"model.config: is not a configuration of {architecture} ({untrusted.reason(error)}): correct it") from None
    for key in values:
        if key not in defaults:
            raise Refusal(f"model.config.{key}: {architecture} has no such key: {suggestion(key, tuple(defaults))}")
    return config


def differences_from_defaults(architecture: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the values of config.json that describe the network and differ from the defaults, under their present names.

    Raises Refusal if they are invalid. Keys that the architecture does not have are left out.
    """
    given = {key: value for key, value in content.items() if key not in IGNORED and not key.startswith("_") and key != "torch_dtype"}
    for_model = transformers().AutoConfig.for_model
    known = for_model(architecture).to_dict()
    if "quantization_config" in given:
        configuration(architecture, given)
    try:
        complete = for_model(architecture, **given).to_dict()
    except Exception as error:  # as in `configuration`
        raise Refusal(f"config.json: is not a configuration of {architecture} ({untrusted.reason(error)}): choose another model") from None
    return {key: value for key, value in complete.items() if key in known and key not in IGNORED and value != known[key]}


def longest_text(config: Any) -> int | None:
    """Return the largest number of tokens of a text, or None if it is not limited."""
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa numbers positions from the number of its padding plus 1 on
    return positions - config.pad_token_id - 1 if positions and config.model_type == "roberta" else positions


def is_local(config: Any) -> bool:
    """Return True if some layers attend only to near tokens. The library then makes the masks, and the host waits for the device."""
    return bool(getattr(config, "sliding_window", None) or getattr(config, "local_attention", None))


class Pretrained(nn.Module):
    """The base class of the networks. `model` is the model of the library, and `texts` describes its inputs."""

    def __init__(self, model: Any, texts: TextInputs) -> None:
        super().__init__()
        self.model, self.pad = model, texts.pad


class TextClassifier(Pretrained):
    """Maps tokens (n, length) to outputs (n, classes). The padding after a text does not change its outputs."""

    def forward(self, tokens: Tensor) -> Tensor:
        real = tokens != self.pad
        if hasattr(self.model, "score"):  # a decoder: its last token has seen all others
            states = self.model.base_model(input_ids=indices(tokens, self.pad)).last_hidden_state
            last = (real.sum(1) - 1).clamp(min=0)
            return cast("Tensor", self.model.score(states[torch.arange(len(tokens), device=tokens.device), last]))
        # with the dimensions of attention, the library takes the mask as it is
        mask = real if is_local(self.model.config) else attended(real).expand(-1, 1, real.shape[1], -1)
        return cast("Tensor", self.model(input_ids=indices(tokens, self.pad), attention_mask=mask).logits)


class LanguageModel(Pretrained):
    """Maps tokens (n, length) to logits (n, length, num_tokens). Padding follows the text, so it changes no logits before it."""

    def __init__(self, model: Any, texts: TextInputs) -> None:
        super().__init__(model, texts)
        self.num_tokens, self.longest = texts.num_tokens, longest_text(model.config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.of_known(self.model(input_ids=indices(tokens, self.pad)).logits)

    def of_known(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that the tokenizer has. A model may have more, to make their number divisible."""
        return logits if logits.shape[-1] == self.num_tokens else logits[..., : self.num_tokens]

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Return the logits (n, num_tokens) of the token after `tokens` (n, length), and the cache for the next call (see models/transformer.py)."""
        result = self.model(input_ids=indices(tokens, self.pad), cache=cache, use_cache=True, logits_to_keep=1)
        return self.of_known(result.logits[:, -1]), result.cache


def add_lora(network: Any, lora: Lora, untrained: frozenset[str]) -> None:
    """Add the updates to the layers of `network`, and freeze everything else but the parameters named in `untrained`."""
    peft = library("peft", PEFT_VERSION, "model.lora: ")
    layers = "all-linear" if lora.layers == ["all-linear"] else lora.layers
    task = {"task_type": "SEQ_CLS"} if isinstance(network, TextClassifier) else {}  # `all-linear` then leaves out the new last layer
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=layers, **task)
    trained = [parameter for name, parameter in network.named_parameters() if name in untrained]
    try:
        with warnings.catch_warnings(action="ignore"):  # it says that GPT-2 stores its weights transposed
            peft.inject_adapter_in_model(config, network.model)
    except ValueError as error:
        known = {
            name.rpartition(".")[2]
            for name, layer in network.model.named_modules()
            if hasattr(layer, "weight") and not list(layer.children())
        }
        raise Refusal(
            f"model.lora.layers: {untrusted.shown(error, 120)} The layers of this model end in {', '.join(sorted(known))}; "
            "or write `layers: [all-linear]`"
        ) from None
    refuse_shared(network)
    for parameter in trained:
        parameter.requires_grad_(True)


def refuse_shared(network: nn.Module) -> None:
    """Raise Refusal if a weight that is updated belongs to two layers: the sum would change both, and the update only one."""
    uses = Counter(id(parameter) for module in network.modules() for parameter in module.parameters(recurse=False))
    for name, layer in network.named_modules():
        base = getattr(layer, "base_layer", None)
        if base is not None and any(uses[id(parameter)] > 1 for parameter in base.parameters()):
            raise Refusal(f"model.lora.layers: {name} shares its weights with another layer, so it cannot be updated alone: leave it out")
