"""Compares trained models: lists what differs between them, and tests whether their scores differ by more than chance.

`models.read` finds a model and what is recorded about it, `differences.differences` names what differs, `paired.EvaluationSplit` scores
models on the prepared test split, and `paired.paired` tests two of them.
"""
