"""Saves and describes the batch of a step with a non-finite loss or gradient."""

from pathlib import Path

import torch

from pipeline.data.batches.blocks import BlockBatch
from pipeline.io import tensor_file

MAX_LISTED = 5
"""Largest number of samples that the description lists."""


def save(batch: BlockBatch, *, max_samples: int, step: int, learning_rate: float, folder: Path) -> str:
    """Save the training batch of `step` to a file in `folder`, so that the cause of a non-finite loss or gradient can be found. Return a
    description of the batch for a message.

    The description contains the learning rate, the rows of the first samples, and the path of the file. If writing fails with OSError, no
    exception is raised, and the description contains the reason instead of the path.

    The file contains the augmented inputs, the targets, and the rows (n,) of the samples in the train split. A sample of a language model
    is a window of tokens, and its row is the position of its first token. The inputs are augmented again for the file, at most
    `max_samples` at a time, so that they fit in the device's memory.
    """
    path = folder / f"nonfinite-{step:012d}.safetensors"
    # build one part at a time: the whole batch may not fit on the device
    parts = [[tensor.cpu() for tensor in part if tensor is not None] for part in batch.parts(max_samples)]
    inputs, targets, *_ = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    rows = ", ".join(str(row) for row in batch.batch_index.rows[:MAX_LISTED].tolist())
    try:
        tensor_file.save(path, {"inputs": inputs, "targets": targets, "rows": batch.batch_index.rows}, {"step": step})
        saved = f"its batch is in {path}"
    except OSError as error:
        saved = f"its batch could not be written ({error.strerror})"
    return f"at learning rate {learning_rate:.3g} and on {batch.row_noun} {rows}, ... ({saved})"
