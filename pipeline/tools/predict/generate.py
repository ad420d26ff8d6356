"""`python -m pipeline generate`: continue a text with a language model."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.core.environment import Environment, Paths
from pipeline.core.refusal import Refusal, counted

if TYPE_CHECKING:
    from pipeline.core.tokenizer import Tokenizer

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, except tab and line feed. The vocabulary of a stranger's model may contain them, and a terminal obeys them."""
SURROGATE = re.compile("[\ud800-\udfff]")
"""Python's character for a byte of the command line that is not UTF-8."""
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 4
"""In tokens: no character has more bytes."""


def run(model: str, prompt: str, temperature: float, top_k: int | None, top_p: float | None, seed: int, length: int) -> None:
    """Print `prompt` and then at most `length` generated tokens, each as soon as it is drawn. If the text ends earlier, print the reason on
    stderr.

    `model` is a model file, a run, or a model in MLflow. GenerationSettings describes the other parameters. Raises Refusal for an invalid
    argument, or if the model does not generate text.
    """
    refuse_invalid(prompt, temperature=temperature, top_k=top_k, top_p=top_p, length=length)
    from pipeline.core.tokenizer import Tokenizer
    from pipeline.evaluate.generation import GenerationSettings, generate
    from pipeline.inference import model_file  # late: torch takes seconds to import, and an invalid argument is reported before
    from pipeline.inference.machine import Machine, set_determinism
    from pipeline.runs import find

    environment = Environment.read()
    with find.located(model, Paths(), environment) as found:
        loaded, manifest = model_file.load(found.path)
    targets = manifest.spec.targets
    if targets.stored == "within":
        raise Refusal(f"{model}: reads a text and writes another: use `python -m pipeline predict`")
    if targets.stored != "windows":
        raise Refusal(f"{model}: is a model of the task {targets.kind}, which generates no text: choose a language model")
    tokenizer = Tokenizer(cast("Any", manifest.spec.inputs).tokenizer)
    tokens = encode(prompt, tokenizer)
    loaded.to(Machine.set_up(environment).device)
    set_determinism(manifest.inference.train.deterministic)
    settings = GenerationSettings(temperature=temperature, top_k=top_k, top_p=top_p, length=length, seed=seed)
    count = show(prompt, tokens, generate(loaded, tokens, tokenizer=tokenizer.description, settings=settings), tokenizer.decode)
    if count < length:
        print(f"generate: stopped after {counted(count, 'token')}: the model ended the text, or can read no more tokens", file=sys.stderr)


def refuse_invalid(prompt: str, *, temperature: float, top_k: int | None, top_p: float | None, length: int) -> None:
    """Raise Refusal with a line for each argument that is invalid."""
    checks = {
        "--prompt: is not UTF-8": not SURROGATE.search(prompt),
        f"--temperature: should be a number from 0, not {temperature}": math.isfinite(temperature) and temperature >= 0,
        f"--top-k: should be at least 1, not {top_k}": top_k is None or top_k >= 1,
        f"--top-p: should be above 0 and at most 1, not {top_p}": top_p is None or 0 < top_p <= 1,
        f"--length: should be at least 1, not {length}": length >= 1,
    }
    if not all(checks.values()):
        raise Refusal("\n".join(message for message, is_valid in checks.items() if not is_valid))


def encode(prompt: str, tokenizer: "Tokenizer") -> list[int]:
    """Return the tokens of `prompt`. A token that is not in the vocabulary becomes the unknown one; if there are any, print a
    warning.
    """
    tokens: list[int] = tokenizer.encode(prompt).tolist()
    if unknown := sum(token == tokenizer.description.unknown for token in tokens):
        message = f"{unknown} of its {len(tokens)} tokens are not in the model's vocabulary, so the model cannot tell them apart"
        print(f"warning: --prompt: {message}", file=sys.stderr)
    return tokens


def show(prompt: str, tokens: Sequence[int], generated: Iterable[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Print `prompt`, then the text of the `generated` tokens as they arrive. Return how many tokens were generated.

    `tokens` are those of the prompt. `decode` turns tokens into text.
    """
    count = 0
    for count, piece in enumerate(pieces(tokens, generated, decode)):  # raises Refusal for an unusable prompt before anything is printed
        write((prompt if count == 0 else "") + piece)
    write("\n")
    return count


def write(text: str) -> None:
    """Print `text` at once. On a terminal, its control characters are escaped."""
    if sys.stdout.isatty():
        text = CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
    print(text, end="", flush=True)


def pieces(prompt: Sequence[int], generated: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text that each of the `generated` tokens adds: all characters that are now complete. At the end, yield the rest of the text.

    An incomplete last character becomes U+FFFD in the rest. `prompt` has the tokens of the prompt, because the first generated token may
    complete the last character of the prompt.
    """
    tokens = [*prompt[-LONGEST_CHARACTER:]]
    for token in generated:
        known = decode(tokens).removesuffix(INCOMPLETE)
        tokens.append(token)
        yield decode(tokens).removesuffix(INCOMPLETE)[len(known) :]
        tokens = tokens[-LONGEST_CHARACTER:]
    text = decode(tokens)
    yield text[len(text.removesuffix(INCOMPLETE)) :]
