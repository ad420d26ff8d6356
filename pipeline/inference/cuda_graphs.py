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
"""The number of graphs that are kept at most. Each takes some megabytes."""
LITTLE_MEMORY = "too little memory"
WAIT = "called a synchronizing CUDA operation"
"""PyTorch's warning of an operation that makes the host wait for the GPU."""
GENERATORS = ("torch", "Python's random", "numpy.random")
PROTOTYPE = "Synchronization debug mode is a prototype"


class NotRecorded(RuntimeError):
    """Raised within a recording that must not be completed. The message is the reason."""


@dataclass
class Recording:
    """The number of calls of a function and, once it is recorded, its graph, the inputs that the graph reads, and the result that it writes."""

    calls: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    inputs: tuple[Tensor, ...] = ()
    result: Any = None


@dataclass
class Graphs:
    """The CUDA graphs of a training or an evaluation. They use one pool of memory in turn, so no graph needs what another has left in it.

    If a function cannot be recorded, the reason is printed as a line of `stage`. From then on, all functions are launched operation by operation.
    """

    device: torch.device
    stage: str
    """The name of the stage for messages: `train` or `evaluate`."""
    may_record: bool = True
    """False as long as functions are only called and watched."""
    is_full: bool = False
    stopped: bool = False
    recordings: dict[Hashable, Recording] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # untyped in torch
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, inputs: Sequence[Tensor], function: Callable[..., Any]) -> Any:
        """Return `function(*inputs)`. From the third call with this `key` and inputs of this layout on, a graph computes it.

        In the first call, libraries load kernels and choose algorithms. The second call is watched for what a graph cannot repeat (see
        `watched`). The function must launch the same operations in each call. What changes between calls, and is not in `inputs`, it must
        read from memory of the device that stays where it is. The next call may overwrite the tensors that it returns.
        """
        if self.stopped:
            return function(*inputs)
        layout = ((each.shape, each.stride(), each.dtype) for each in inputs)
        recording = self.recordings.setdefault((key, *layout), Recording())
        recording.calls += 1
        if recording.graph is None and recording.calls > 2 and self.may_record:
            if self.num_graphs < MOST_GRAPHS:
                self.stop(self.record(recording, function, inputs))
            elif not self.is_full:
                self.is_full = True
                self.announce(f"inputs of further shapes, because there are {MOST_GRAPHS} graphs already")
        if recording.graph and self.replayed(recording, inputs):
            return recording.result
        if recording.calls != 2:
            return function(*inputs)
        result, obstacle = watched(function, *inputs)
        self.stop(obstacle)
        return result

    def replayed(self, recording: Recording, inputs: Sequence[Tensor]) -> bool:
        """Replay the graph. If memory runs out, release all graphs and return False."""
        assert recording.graph
        reason = None
        try:
            copy(recording.inputs, inputs)
            recording.graph.replay()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = LITTLE_MEMORY
        self.stop(reason)
        return not self.stopped

    @property
    def num_graphs(self) -> int:
        return sum(recording.graph is not None for recording in self.recordings.values())

    def record(self, recording: Recording, function: Callable[..., Any], inputs: Sequence[Tensor]) -> str | None:
        """Record `function`, without executing it, with inputs of its own that have the layout of `inputs`. Return why it fails, or None."""
        graph, collects = torch.cuda.CUDAGraph(), gc.isenabled()
        torch.cuda.empty_cache()  # a recording cannot use memory that PyTorch keeps for later allocations
        gc.disable()  # to destroy another graph is an error within a recording
        try:
            own = tuple(torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device) for each in inputs)
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")  # other threads read data meanwhile
                try:
                    result = function(*own)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # that the recording is invalid follows from the first error
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException as error:
            self.clean_up()
            if not isinstance(error, RuntimeError):
                raise
            return LITTLE_MEMORY if is_out_of_memory(error) else (str(error).splitlines() or [repr(error)])[0]
        finally:
            if collects:
                gc.enable()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        recording.graph, recording.inputs, recording.result = graph, own, result
        return None

    def clean_up(self) -> None:
        """Undo what PyTorch leaves after a failed recording: its allocator and its random generator still wait for the end of it."""
        with contextlib.suppress(RuntimeError):  # raised if the recording failed after its end
            torch._C._cuda_endAllocateToPool(self.device.index or 0, self.pool)
        generator = torch.cuda.default_generators[self.device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())

    def refuse(self, reason: str) -> None:
        """Keep the function that calls this from being recorded: end its recording, or record nothing from now on."""
        if torch.cuda.is_current_stream_capturing():
            raise NotRecorded(reason)
        self.stop(reason)

    def announce(self, reason: str) -> None:
        """Print what is not captured, or why nothing is any more."""
        print(f"{self.stage}: not captured as CUDA graphs, which changes no result: {reason}", flush=True)

    def stop(self, reason: str | None) -> None:
        """Release all graphs and their memory, and record nothing from now on, because of `reason`. If it is None, do nothing."""
        if reason is not None and not self.stopped:
            self.stopped = True
            self.recordings.clear()
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # one of them was made in the memory of the graphs
            torch.cuda.empty_cache()
            self.announce(reason)


def watched(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, str | None]:
    """Return `function(*inputs)`, and why a graph cannot repeat it, or None.

    A graph cannot wait for the host, and would use the random numbers again that the host drew when it was recorded.
    """
    before, mode = host_randomness(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(max(mode, 1))  # 1 warns
        try:
            result = function(*inputs)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waited = [warning for warning in found if WAIT in str(warning.message)]
    for warning in found:
        if warning not in waited and PROTOTYPE not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if waited:
        return result, f"an operation waits for the GPU ({waited[0].filename}:{waited[0].lineno})"
    return result, None if host_randomness() == before else "the network draws random numbers on the host"


def host_randomness() -> tuple[bytes, object, object]:
    """Return the states of the GENERATORS on the CPU, to compare them."""
    of_numpy = np.random.get_state(legacy=False)
    words = of_numpy["state"]
    state = (words["key"].tobytes(), words["pos"], of_numpy["has_gauss"], of_numpy["gauss"])
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), state


def changed_generators(before: tuple[bytes, object, object]) -> list[str]:
    """Return which of the GENERATORS have drawn random numbers or were seeded since `host_randomness` returned `before`."""
    return [name for name, then, now in zip(GENERATORS, before, host_randomness(), strict=True) if then != now]


def copy(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy each source into the target at the same place, with one operation for all that have the same dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        to, of = flattened(target, source)
        targets_of_dtype, sources_of_dtype = by_dtype.setdefault(of.dtype, ([], []))
        targets_of_dtype.append(to)
        sources_of_dtype.append(of)
    for of_dtype in by_dtype.values():
        torch._foreach_copy_(*of_dtype)


def flattened(*tensors: Tensor) -> Iterator[Tensor]:
    """Yield each tensor as bytes, so that tensors of several dtypes can be copied together. If one is not contiguous, yield all as they are."""
    contiguous = all(tensor.is_contiguous() for tensor in tensors)
    yield from (tensor.view(-1).view(torch.uint8) if contiguous else tensor for tensor in tensors)
