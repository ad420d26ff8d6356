"""`python -m pipeline fit-batch`: measure throughput and memory of each micro-batch size, and propose one."""

from pipeline.params.load import adding_lines, load
from pipeline.params.train import TrainParams
from pipeline.params.yaml_document import Document
from pipeline.paths import Paths


def run() -> None:
    """Print a table of micro-batch sizes, the effect of another size on BatchNorm and dropout, and the command that writes the proposed size
    to params.yaml.

    The sizes divide the batch, so that all micro-batches are equal. Raises Refusal if the parameters or the data are invalid, or if no size
    fits in memory.
    """
    document = Document.read(Paths().params)
    params = load(document, TrainParams)
    from pipeline.profiling import fit_batch  # late: it takes seconds to import

    with adding_lines(document):
        print("\n".join(fit_batch.measure_sizes(params.train).lines()))
