"""The update of an optimizer as a CUDA graph: the host starts its hundreds of kernels with one call."""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

Update = Callable[[Sequence[list[Tensor]], Sequence[Tensor], Tensor | None], None]
"""`update(gradients, rates, found_inf)` changes weights and states in place. It gets the gradients and the learning rate of each group."""


class RecordedUpdate:
    """Records `update` at its first call, and replays it at each later one.

    A graph always reads the same memory, so what differs from step to step is copied there first. The weights and the states of the
    optimizer must stay where they are, and the gradients must be those of the same parameters.
    """

    def __init__(self, update: Update, gradients: Sequence[list[Tensor]], found_inf: Tensor | None) -> None:
        self.update = update
        self.gradients = [[torch.empty_like(gradient) for gradient in group] for group in gradients]
        device = next(chain(*gradients)).device
        self.rates = [torch.zeros((), device=device) for _ in gradients]
        self.found_inf = None if found_inf is None else torch.empty_like(found_inf)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, gradients: Sequence[list[Tensor]], rates: Sequence[float], found_inf: Tensor | None) -> None:
        torch._foreach_copy_(list(chain(*self.gradients)), list(chain(*gradients)))
        for kept, rate in zip(self.rates, rates, strict=True):
            kept.fill_(rate)
        if self.found_inf is not None and found_inf is not None:
            self.found_inf.copy_(found_inf)
        if self.graph:
            self.graph.replay()
        else:  # the first call is not recorded, because libraries load kernels and allocate memory in it
            self.update(self.gradients, self.rates, self.found_inf)
            self.graph = self.recorded()

    def recorded(self) -> torch.cuda.CUDAGraph:
        """Return the update as a graph, without executing it."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]  # untyped in torch
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads read data meanwhile
            self.update(self.gradients, self.rates, self.found_inf)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph
