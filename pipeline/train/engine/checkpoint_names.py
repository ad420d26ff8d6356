"""Names of the files beside the checkpoints of a training, apart from the code that writes them, which imports torch."""

HISTORY = "history.jsonl"
"""The rows of the history up to the newest checkpoint."""
LASTING = "lasting-"
"""The prefix of the name of a checkpoint that is kept for a training of another length."""
