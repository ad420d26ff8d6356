"""The Python code of an image model in MLflow, which MLflow loads and serves. It checks the input, then runs the exported program.

MLflow copies this file into the logged model, so the file must not import from `pipeline`.
"""

from typing import Any

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel
from numpy.typing import NDArray

EXPORTED = "exported"


class ServedModel(PythonModel):
    """A model whose `predict` maps raw images, integers from 0 to 255 of shape (n, height, width, channels), to logits (n, classes).

    The logged model has no input signature. With a signature, MLflow would convert inputs to uint8 before this class checks them: 0.5 would
    become 0 instead of being refused.
    """

    def load_context(self, context: Any) -> None:
        self._exported = mlflow.pyfunc.load_model(context.artifacts[EXPORTED])

    def predict(self, model_input: np.ndarray) -> NDArray[np.float32]:  # type: ignore[override]  # MLflow warns about other annotations
        """Return float32 logits (n, classes). Raises MlflowException (HTTP status 400 on a server) for invalid input."""
        shape = self._exported.metadata.signature.inputs.inputs[0].shape[1:]
        logits: NDArray[np.float32] = self._exported.predict(checked(model_input, shape))
        return logits


def checked(given: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the input as a uint8 array (n, *shape). Raises MlflowException if it is not an array of integers from 0 to 255 of this shape."""
    try:
        images = np.asarray(given)
    except ValueError:
        raise refusal("lists of different lengths", shape) from None
    if images.shape[1:] != shape:
        raise refusal(f"an array of shape {images.shape}", shape)
    if images.dtype.kind not in "iu":
        raise refusal(f"values of type {images.dtype}", shape)
    if images.size and not 0 <= images.min() <= images.max() <= 255:
        raise refusal(f"values from {images.min()} to {images.max()}", shape)
    return images.astype(np.uint8, copy=False)


def expected(shape: tuple[int, ...]) -> str:
    """Return a description of the model's input, for messages and for the logged model. `shape` is the (height, width, channels) of an
    image.
    """
    return f"raw images, integers from 0 to 255 of shape (n, {', '.join(map(str, shape))})"


def refusal(found: str, shape: tuple[int, ...]) -> MlflowException:
    """Return the exception for an invalid input, described by `found`. A server answers it with HTTP status 400."""
    return MlflowException(
        f"the input contains {found}; send {expected(shape)}: the model normalises them itself", error_code=INVALID_PARAMETER_VALUE
    )


set_model(ServedModel())
