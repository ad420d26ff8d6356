"""The loss of a language model per token, per character and per byte."""

import math


def rates(loss: float, num_tokens: float, *, characters: float, size_bytes: float) -> dict[str, float]:
    """Return the perplexity, the bits per character and the bits per byte of a text of `num_tokens` tokens.

    `loss` is the cross-entropy of all tokens in nats, summed. The text has `characters` characters and `size_bytes` bytes of UTF-8. If it
    has no characters, its bits per character are infinite; if it has no bytes, its bits per byte are.
    """
    bits = loss / math.log(2)
    mean = loss / num_tokens
    return {
        "perplexity": math.exp(mean) if mean < math.log(1e300) else math.inf,
        "bits_per_character": bits / characters if characters else math.inf,
        "bits_per_byte": bits / size_bytes if size_bytes else math.inf,
    }
