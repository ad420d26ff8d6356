"""Records what the host launches on a GPU as CUDA graphs, and replays them: one launch then starts hundreds of kernels.

A graph repeats its kernels on the same memory. So what differs from call to call is copied into that memory before a replay, and results are
written where they stay.
"""

import contextlib
import gc
import random
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.inference.torch_errors import is_out_of_memory

MOST_GRAPHS = 64
"""The number of graphs that are kept at most. A function with inputs of further shapes is launched operation by operation."""
WAIT = "called a synchronizing CUDA operation"
"""PyTorch's warning of an operation that makes the host wait for the GPU."""
PROTOTYPE = "Synchronization debug mode is a prototype"


class NotRecorded(RuntimeError):
    """Raised by a function that has been executed, but must not be recorded, or if the recording fails. The message is the reason."""


@dataclass
class Recording:
    """The number of calls of a function, and the graph that is recorded at the third call. `inputs` are the tensors that the graph reads."""

    calls: int = 0
    inputs: tuple[Tensor, ...] = ()
    graph: torch.cuda.CUDAGraph | None = None


@dataclass
class Graphs:
    """The CUDA graphs of a training. They use one pool of memory in turn, so a graph must not need what another has left in it.

    If a function cannot be recorded, `announce` is called with the reason. From then on, all functions are launched operation by operation.
    """

    device: torch.device
    announce: Callable[[str], None]
    stopped: bool = False
    recordings: dict[Hashable, Recording] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # untyped in torch
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, inputs: Sequence[Tensor], function: Callable[..., None]) -> None:
        """Execute `function(*inputs)`. From the third call with this `key` and inputs of these shapes and dtypes on, a graph executes it.

        In the first call, libraries load kernels and choose algorithms. The second call is watched for what a graph cannot repeat (see
        `watched`). The function must launch the same operations in each call. What changes between calls, and is not in `inputs`, it must
        read from memory of the device that stays where it is; it must leave its results in such memory.
        """
        if self.stopped:
            function(*inputs)
            return
        recording = self.recordings.setdefault((key, *((each.shape, each.dtype) for each in inputs)), Recording())
        recording.calls += 1
        if recording.calls > 2 and recording.graph is None and self.num_graphs < MOST_GRAPHS:
            self.stop_for(problem(self.record, recording, function, inputs))
        if recording.graph:
            copy(recording.inputs, inputs)
            recording.graph.replay()
        elif recording.calls == 2:
            self.stop_for(problem(watched, function, *inputs))
        else:
            self.stop_for(problem(function, *inputs))

    @property
    def num_graphs(self) -> int:
        return sum(recording.graph is not None for recording in self.recordings.values())

    def record(self, recording: Recording, function: Callable[..., None], inputs: Sequence[Tensor]) -> None:
        """Record `function`, without executing it, with inputs of its own that have the layout of `inputs`. Raises NotRecorded if it fails."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()  # a recording cannot use memory that PyTorch keeps for later allocations
        try:
            own = tuple(torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in inputs)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")  # other threads read data meanwhile
                try:
                    function(*own)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            self.clean_up()
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error  # `capture_end` raises an error of its own
            raise NotRecorded("too little memory" if is_out_of_memory(cause) else str(cause).splitlines()[0]) from error
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        recording.inputs, recording.graph = own, graph

    def clean_up(self) -> None:
        """Undo what PyTorch leaves after a failed recording: its allocator and its random generator still wait for the end of it."""
        with contextlib.suppress(RuntimeError):  # raised if the recording failed after its end
            torch._C._cuda_endAllocateToPool(self.device.index or 0, self.pool)
        generator = torch.cuda.default_generators[self.device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())

    def stop_for(self, reason: str) -> None:
        """Release all graphs and their memory, and record nothing from now on, because of `reason`. Do nothing if it is ""."""
        if reason and not self.stopped:
            self.stopped = True
            self.recordings.clear()
            gc.collect()
            torch.cuda.empty_cache()
            self.announce(reason)


def problem(function: Callable[..., None], *arguments: Any) -> str:
    """Call `function(*arguments)`. Return the message of NotRecorded, or "" if it was not raised.

    The exception is gone afterwards: it would keep the tensors of the function alive.
    """
    try:
        function(*arguments)
    except NotRecorded as error:
        return str(error)
    return ""


def watched(function: Callable[..., None], *inputs: Tensor) -> None:
    """Execute `function(*inputs)`. Raises NotRecorded afterwards if a graph cannot repeat it.

    A graph cannot wait for the host, and would use the random numbers again that the host drew when it was recorded.
    """
    before, mode = host_randomness(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(max(mode, 1))  # 1 warns
        try:
            function(*inputs)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waited = [warning for warning in found if WAIT in str(warning.message)]
    for warning in found:
        if warning not in waited and PROTOTYPE not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if waited:
        raise NotRecorded(f"an operation waits for the GPU ({waited[0].filename}:{waited[0].lineno})")
    if host_randomness() != before:
        raise NotRecorded("the network draws random numbers on the host")


def host_randomness() -> tuple[bytes, object, object]:
    """Return the states of the random generators of PyTorch on the CPU, Python and NumPy, to compare them."""
    _, keys, *position = np.random.get_state()  # noqa: NPY002  # networks of libraries may draw from it
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (bytes(keys), position)


def copy(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy each source into the target at the same place, with one operation for all that have the same dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        to, of = as_bytes(target, source)
        targets_of_dtype, sources_of_dtype = by_dtype.setdefault(of.dtype, ([], []))
        targets_of_dtype.append(to)
        sources_of_dtype.append(of)
    for of_dtype in by_dtype.values():
        torch._foreach_copy_(*of_dtype)


def as_bytes(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield the bytes of each tensor, so that tensors of several dtypes can be copied together; or the tensors if one is not contiguous."""
    contiguous = all(tensor.is_contiguous() for tensor in tensors)
    yield from (tensor.view(-1).view(torch.uint8) if contiguous else tensor for tensor in tensors)
