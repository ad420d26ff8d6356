"""Rounds scores, such as an accuracy or a loss, for people. Predicted numbers are rounded by their task, in `tasks/KIND/predict.py`."""


def rounded(value: float) -> str:
    """Return a result as text, such as `0.9123`: with four decimals, below 0.001 with four significant digits, and from 100,000 on with eight.

    So a small number, such as 3.159e-47, is never shown as 0.0000.
    """
    if not value or 0.001 <= abs(value) < 100_000:
        return f"{value:.4f}"
    return f"{value:.4g}" if abs(value) < 1 else f"{value:.8g}"
