"""The loss of a language model per token, per character and per byte."""

import math


def rates(loss: float, num_tokens: float, *, characters: float, size_bytes: float) -> dict[str, float]:
    """Return perplexity, bits per character and bits per byte from `loss`, the cross-entropy in nats, summed over `num_tokens` tokens.

    The tokens have `characters` characters and `size_bytes` bytes of UTF-8 together. The rate of a text without characters is infinite.
    """
    bits = loss / math.log(2)
    mean = loss / num_tokens
    return {
        "perplexity": math.exp(mean) if mean < math.log(1e300) else math.inf,
        "bits_per_character": bits / characters if characters else math.inf,
        "bits_per_byte": bits / size_bytes if size_bytes else math.inf,
    }
