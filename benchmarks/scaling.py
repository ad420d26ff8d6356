"""Calculate the time of a training step on 1 to 1,024 GPUs: where a preset stops scaling, what limits it, and which switch helps.

    python -m benchmarks.scaling                                              # every preset, and a transformer of a billion weights
    python -m benchmarks.scaling params.yaml --adapters 1                     # nodes with one network adapter instead of eight
    python -m benchmarks.scaling presets/digits.yaml --measured digits=2.5    # from the measured milliseconds of a step on one GPU

The batch is divided among the GPUs; it does not grow with them (strong scaling). The operations of a step are counted on the meta device,
so nothing is measured and no GPU is needed. docs/scaling.md has the formulas, their sources and the results.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.step_work import Work, billion, calculated_presets, work_of_data
from pipeline.core.refusal import Refusal
from pipeline.core.yaml_document import Document
from pipeline.runs.table import markdown

GPUS = tuple(2**power for power in range(11))
ENOUGH = 0.5
"""A preset stops scaling where the efficiency, the speedup divided by the number of GPUs, falls below this share."""
GRAPH_LAUNCH_S = 1e-6
"""Time from one kernel of a CUDA graph to the next. Assumed, not measured."""
LARGER = 8
"""Factor of the larger batch, and number of lanes, in the table of switches."""
ADAPTER_BYTES_PER_S = 400e9 / 8
COLLECTIVE_LATENCY_S = 14e-6
"""Latency of any collective in NCCL's own model (protocol LL128). The steps of its algorithm come on top."""
TREE_STEP_S, RING_STEP_S = (1.25e-6, 8.5e-6), (1.9e-6, 4.0e-6)
"""Latency of a step in a node, and between nodes."""
BUCKET_BYTES = 25 * 2**20
"""Size of a bucket of gradients in DDP."""
BACKWARD = 2 / 3
"""Share of the backward pass in the computation."""
UPDATE_ACCESSES = 7
"""AdamW reads weight, gradient and two moments, and writes all but the gradient."""


@dataclass(frozen=True)
class Cluster:
    """Nodes of eight H200 with NVLink. The rates are those that the GPUs are assumed to reach, the links those of the data sheets."""

    flops_per_s: float = 400e12
    """Achieved in bf16, 40% of the peak. Assumed, not measured."""
    memory_bytes_per_s: float = 4.8e12
    launch_s: float = 5e-6
    """Time to launch one kernel from Python. Assumed, not measured."""
    node_gpus: int = 8
    nvlink_bytes_per_s: float = 450e9
    """Per GPU and direction."""
    adapters: int = 8
    """Network adapters per node, of 400 Gb/s each."""

    def divide(self, gpus: int) -> tuple[int, int]:
        """Return the number of GPUs in a node, and the number of nodes."""
        inside = min(gpus, self.node_gpus)
        return inside, gpus // inside

    def one_way_s(self, size_bytes: float, gpus: int, *, parts: int, direct: bool = False) -> float:
        """Return the time of a reduce-scatter or an all-gather of `size_bytes`, in `parts` collectives with the latency of NCCL's ring.

        The GPUs of a node exchange over NVLink. GPUs of the same place in their nodes exchange an equal share of the bytes over the network.
        If `direct` is True, it is an all-to-all: each GPU sends its own chunks to all others, and no node adds them before.
        """
        inside, nodes = self.divide(gpus)
        latency_s = COLLECTIVE_LATENCY_S + (gpus - nodes) * RING_STEP_S[0] + (nodes - 1) * RING_STEP_S[1] if gpus > 1 else 0.0
        near, far = (inside - 1) / (gpus if direct else inside), (nodes - 1) / nodes / (1 if direct else inside)
        network_bytes_per_s = self.adapters * ADAPTER_BYTES_PER_S / self.node_gpus
        return latency_s * parts + size_bytes * (near / self.nvlink_bytes_per_s + far / network_bytes_per_s)

    def all_reduce_s(self, size_bytes: float, gpus: int, *, parts: int) -> float:
        """Return the time of an all-reduce in `parts` collectives: a reduce-scatter and an all-gather, with the latency of NCCL's tree."""
        inside, nodes = self.divide(gpus)
        latency_s = COLLECTIVE_LATENCY_S + 2 * ((inside - 1) * TREE_STEP_S[0] + math.log2(nodes) * TREE_STEP_S[1]) if gpus > 1 else 0.0
        return latency_s * parts + 2 * self.one_way_s(size_bytes, gpus, parts=0)


class Step(NamedTuple):
    """The parts of the time of a step, in seconds: exchange only where computation does not hide it."""

    compute_s: float
    exchange_s: float
    update_s: float
    bound: str
    """What the computation waits for."""

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exchange_s + self.update_s


def step(work: Work, gpus: int, cluster: Cluster, *, lanes: int = 1, sharded: bool = False) -> Step:
    """Return the time of a step on `gpus` GPUs. Raises Refusal if they do not divide the batch and the lanes, or leave a node incomplete."""
    if gpus < 1 or work.batch_size % max(gpus, lanes) or (lanes > 1 and lanes % gpus):
        raise Refusal(
            f"{work.name}: {gpus} GPUs do not divide batch_size ({work.batch_size}) and lanes ({lanes}): choose a divisor of both"
        )
    if gpus > cluster.node_gpus and gpus % cluster.node_gpus:
        raise Refusal(f"{gpus} GPUs leave a node of {cluster.node_gpus} incomplete: choose a multiple of {cluster.node_gpus}")
    samples = work.batch_size // gpus
    passes = max(math.ceil(samples / work.micro_batch_size), lanes // gpus)
    times = {
        "arithmetic": samples * work.sample_flops / cluster.flops_per_s,
        "memory": (samples * work.sample_bytes + passes * work.pass_bytes) / cluster.memory_bytes_per_s,
        "launches": passes * work.kernels * cluster.launch_s,
    }
    bound = max(times, key=times.__getitem__)
    compute_s = times[bound]
    if sharded:
        exchange_s = sharded_exchange_s(work, gpus, cluster, passes=passes, pass_s=compute_s / passes)
    else:
        exchange_s = gradient_exchange_s(work, gpus, cluster, pass_s=compute_s / passes, lanes=lanes)
    # the sum of two lanes reads two gradients and writes one
    accesses = UPDATE_ACCESSES / (gpus if sharded else 1) + 3 * max(0, lanes // gpus - 1)
    return Step(compute_s, exchange_s, accesses * work.gradient_bytes / cluster.memory_bytes_per_s, bound)


def gradient_exchange_s(work: Work, gpus: int, cluster: Cluster, *, pass_s: float, lanes: int) -> float:
    """Return the time of DDP's exchange of gradients that the backward pass of the last pass does not hide. A pass takes `pass_s`."""
    parts = math.ceil(work.gradient_bytes / BUCKET_BYTES)
    if lanes > 1:
        exchange_s = sum(cluster.one_way_s(work.gradient_bytes, gpus, parts=parts, direct=direct) for direct in (True, False))
    else:
        exchange_s = cluster.all_reduce_s(work.gradient_bytes, gpus, parts=parts)
    return exposed(exchange_s, parts=parts, hidden_s=BACKWARD * pass_s)


def sharded_exchange_s(work: Work, gpus: int, cluster: Cluster, *, passes: int, pass_s: float) -> float:
    """Return the time of FSDP2's exchange in a step of `passes` passes that these passes do not hide.

    The weights are gathered in bf16, block by block, before each forward and again before each backward pass. The gradients are scattered
    in the last pass.
    """
    parts = work.blocks + 1
    gather_s = cluster.one_way_s(2 * work.num_weights, gpus, parts=parts)
    scatter_s = cluster.one_way_s(work.gradient_bytes, gpus, parts=parts)
    forward_s = exposed(gather_s, parts=parts, hidden_s=(1 - BACKWARD) * pass_s)
    backward_s, last_s = (exposed(sent_s, parts=parts, hidden_s=BACKWARD * pass_s) for sent_s in (gather_s, gather_s + scatter_s))
    return passes * forward_s + (passes - 1) * backward_s + last_s


def exposed(exchange_s: float, *, parts: int, hidden_s: float) -> float:
    """Return the part of an exchange that nothing hides. One of its `parts` comes before or after all computation."""
    return max(exchange_s / parts, exchange_s - hidden_s)


def possible_gpus(work: Work) -> list[int]:
    return [gpus for gpus in GPUS if work.batch_size % gpus == 0]


def last_efficient(work: Work, cluster: Cluster, *, sharded: bool = False) -> int:
    """Return the largest number of GPUs up to which the efficiency is at least ENOUGH."""
    alone_s, last = step(work, 1, cluster).total_s, 1
    for gpus in possible_gpus(work):
        if alone_s / gpus / step(work, gpus, cluster, sharded=sharded).total_s < ENOUGH:
            break
        last = gpus
    return last


def limit(work: Work, cluster: Cluster) -> str:
    """Return what takes the most time beyond a fair share of one GPU's, where the preset stops scaling."""
    after = 2 * last_efficient(work, cluster)
    if after > GPUS[-1]:
        return "nothing"
    if work.batch_size % after:
        return "batch_size"
    alone, found = step(work, 1, cluster), step(work, after, cluster)
    excess = {
        found.bound: found.compute_s - alone.compute_s / after,
        "exchange": found.exchange_s,
        "update": found.update_s - alone.update_s / after,
    }
    return max(excess, key=excess.__getitem__)


def time_table(works: Sequence[Work], cluster: Cluster) -> str:
    """Return a Markdown table of the time of a step in ms, and of where and why each preset stops scaling."""
    shown = (1, 2, 8, 64, 512)
    titles = ("preset", "batch", "weights", "1 GPU", *map(str, shown[1:]), "bound on 1", "efficient up to", "limit")
    rows = []
    for work in works:
        times = [f"{1e3 * step(work, gpus, cluster).total_s:,.2f}" if gpus in possible_gpus(work) else "" for gpus in shown]
        bound, last = step(work, 1, cluster).bound, last_efficient(work, cluster)
        rows.append((work.name, work.batch_size, f"{work.num_weights / 1e6:,.2f} M", *times, bound, last, limit(work, cluster)))
    return markdown(titles, [[*map(str, row)] for row in rows])


def switch_table(works: Sequence[Work], cluster: Cluster) -> str:
    """Return a Markdown table of the last efficient number of GPUs with each switch, and of the relative time of a step with lanes."""
    titles = ("preset", "as it is", f"batch x {LARGER}", "graphs", "bf16-true", "sharding: full", "lanes on 1 GPU", f"on {LARGER} GPUs")
    rows = []
    for work in works:
        micro = LARGER * work.batch_size if work.micro_batch_size == work.batch_size else work.micro_batch_size
        changes = (
            (work, cluster),
            (replace(work, batch_size=LARGER * work.batch_size, micro_batch_size=micro), cluster),
            (work, replace(cluster, launch_s=GRAPH_LAUNCH_S)),
            (replace(work, gradient_bytes=min(work.gradient_bytes, 2 * work.num_weights)), cluster),
        )
        last = [*(last_efficient(*changed) for changed in changes), last_efficient(work, cluster, sharded=True)]
        rows.append((work.name, *last, *(lanes_cost(work, gpus, cluster) for gpus in (1, LARGER))))
    return markdown(titles, [[*map(str, row)] for row in rows])


def lanes_cost(work: Work, gpus: int, cluster: Cluster) -> str:
    """Return the time of a step with LARGER lanes, relative to one without lanes, or "" if the lanes do not divide the batch."""
    if work.batch_size % LARGER:
        return ""
    return f"{step(work, gpus, cluster, lanes=LARGER).total_s / step(work, gpus, cluster).total_s:.2f}"


def plot(path: Path, works: Sequence[Work], cluster: Cluster) -> None:
    """Plot the time of a step against the number of GPUs. A dot marks the last efficient number."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for number, work in enumerate(works):
        gpus, last = possible_gpus(work), last_efficient(work, cluster)
        times = [1e3 * step(work, some, cluster).total_s for some in gpus]
        style = ("-", "--")[number // 10]
        axes.plot(gpus, times, style, color=f"C{number % 10}", linewidth=1, label=work.name)
        axes.plot(last, times[gpus.index(last)], "o", color=f"C{number % 10}", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="GPUs", ylabel="ms a step", xticks=GPUS, xticklabels=GPUS)
    figure.legend(loc="outside right center", fontsize=7, frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be a positive number")
    return value


def measured(text: str) -> tuple[str, float]:
    name, _, milliseconds = text.partition("=")
    return name, positive(milliseconds) / 1e3


def with_measurements(works: list[Work], measured_s: Mapping[str, float], cluster: Cluster) -> list[Work]:
    """Return `works`, those in `measured_s` with the measured time of a step's computation on one GPU. Raises Refusal for unknown names."""
    if unknown := sorted(measured_s.keys() - {work.name for work in works}):
        raise Refusal(
            f"--measured: {unknown[0]!r} is none of the calculated presets: write one of {', '.join(work.name for work in works)}"
        )
    return [fitted(work, measured_s[work.name], cluster) if work.name in measured_s else work for work in works]


def fitted(work: Work, measured_s: float, cluster: Cluster) -> Work:
    """Return `work` with a computation that takes `measured_s` on one GPU. If that is longer, only its slowest part becomes slower."""
    alone = step(work, 1, cluster)
    factor = measured_s / alone.compute_s
    computing, launching = (min(1.0, factor), factor) if alone.bound == "launches" else (factor, min(1.0, factor))
    return replace(
        work,
        sample_flops=computing * work.sample_flops,
        sample_bytes=computing * work.sample_bytes,
        pass_bytes=computing * work.pass_bytes,
        kernels=launching * work.kernels,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "params", type=Path, nargs="*", help="parameter files; without any, all presets and a transformer of a billion weights"
    )
    parser.add_argument("--rate", type=positive, default=400.0, help="achieved TFLOP/s of one GPU")
    parser.add_argument("--adapters", type=int, choices=range(1, 9), default=8, help="network adapters of 400 Gb/s per node")
    parser.add_argument("--measured", type=measured, nargs="*", default=[], metavar="PRESET=MS", help="measured step on one GPU, in ms")
    parser.add_argument("--figure", type=Path, help="path of a PNG to write")
    options = parser.parse_args(arguments)
    cluster = Cluster(flops_per_s=options.rate * 1e12, adapters=options.adapters)
    try:
        files = {path.stem: Document.read(path).data for path in options.params or calculated_presets()}
        works = [work_of_data(name, data) for name, data in (files if options.params else {**files, "1 B transformer": billion()}).items()]
        works = with_measurements(works, dict(options.measured), cluster)
    except Refusal as refusal:
        parser.error(str(refusal))
    print(time_table(works, cluster), switch_table(works, cluster), sep="\n\n")
    if options.figure:
        plot(options.figure, works, cluster)


if __name__ == "__main__":
    main()
