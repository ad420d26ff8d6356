"""The update of an optimizer as a CUDA graph: the host starts its hundreds of kernels with one call."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor

Update = Callable[[Sequence[list[Tensor]], Sequence[Tensor], Tensor | None], None]
"""`update(gradients, rates, found_inf)` changes weights and states in place. It gets the gradients and the learning rate of each group."""


class GraphedUpdate:
    """Captures an update as a CUDA graph at its first call, and replays it at each later one.

    A graph always reads the same memory, so what differs from step to step is copied there first: a second copy of the gradients, the
    learning rates, and `found_inf`. The weights and the states of the optimizer must stay where they are.
    """

    def __init__(self, gradients: Sequence[list[Tensor]], found_inf: Tensor | None) -> None:
        self.gradients = [[torch.empty_like(gradient) for gradient in group] for group in gradients]
        device = next(chain(*gradients)).device
        self.rates = [torch.zeros((), device=device) for _ in gradients]
        self.found_inf = None if found_inf is None else torch.empty_like(found_inf)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, update: Update, gradients: Sequence[list[Tensor]], rates: Sequence[float], found_inf: Tensor | None) -> None:
        """Apply `update`, the same at each call. `gradients` must be those of the same parameters."""
        copy(chain(*self.gradients), chain(*gradients))
        for kept, rate in zip(self.rates, rates, strict=True):
            kept.fill_(rate)
        if self.found_inf is not None:
            assert found_inf is not None
            self.found_inf.copy_(found_inf)
        if self.graph:
            self.graph.replay()
        else:  # the first call is not captured, because libraries load kernels and allocate memory in it
            update(self.gradients, self.rates, self.found_inf)
            self.graph = self.captured(update)

    def captured(self, update: Update) -> torch.cuda.CUDAGraph:
        """Return the update as a graph, without executing it."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]  # untyped in torch
        torch.cuda.empty_cache()  # a capture cannot use memory that torch keeps for later allocations
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads read data meanwhile
            try:
                update(self.gradients, self.rates, self.found_inf)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph


def copy(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy each source into the target at the same place, with one operation for each dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        for tensors, tensor in zip(by_dtype.setdefault(source.dtype, ([], [])), (target, source), strict=True):
            tensors.append(tensor)
    for to, of in by_dtype.values():
        torch._foreach_copy_(to, of)
