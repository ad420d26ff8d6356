"""The Python code of a model in MLflow: it answers as `python -m pipeline predict` and `generate` do, from the model file and the code that were logged with it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel

MODEL = "model.safetensors"
CODE = "pipeline.zip"
"""The names of the artifacts."""
PARAMS = {"top_k": 3}
GENERATION = {"temperature": 1.0, "length": 256, "seed": 1}
"""The parameters of a request, and those of a request to a language model, with their defaults."""


class ServedModel(PythonModel):
    """A model whose `predict` maps images, texts or rows of a table to records, and beginnings of texts to texts of a language model.

    It has no input signature: with one, MLflow would cast inputs to the signature's dtype before they are checked here, and 0.5 would become 0.
    """

    def load_context(self, context: Any) -> None:
        sys.path.insert(0, context.artifacts[CODE])
        from pipeline import load_model  # late: MLflow runs this file before the code beside it can be imported
        from pipeline.inference import model_file

        path = Path(context.artifacts[MODEL])
        self.network, manifest = model_file.load(path, complete=True)
        self.spec = manifest.spec
        self.model = None if self.spec.targets.stored == "windows" else load_model(path)

    def predict(self, model_input: np.ndarray, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:  # type: ignore[override]  # MLflow warns about other annotations
        """Return a record for each input. Raises MlflowException (HTTP status 400) for invalid input."""
        try:
            values = self.values(model_input)
            if self.model is None:
                return [{"text": self.continued(text, **GENERATION | (params or {}))} for text in values]
            found = list(self.model.predict(values, **PARAMS | (params or {})))
        except ValueError as error:  # also a Refusal
            raise MlflowException(f"{error}", error_code=INVALID_PARAMETER_VALUE) from None
        return [{key: value for key, value in each.record().items() if key != "input"} for each in found]

    def continued(self, prompt: str, *, temperature: float, length: int, seed: int) -> str:
        """Return the text that a language model writes after `prompt`, at most `length` tokens."""
        from pipeline.core.tokenizer import Tokenizer
        from pipeline.evaluate.generation import GenerationSettings, generate
        from pipeline.inputs.text.description import TextInputs

        if not 0 <= temperature < np.inf or length < 1:
            raise ValueError(f"temperature is {temperature} and length is {length}: write numbers from 0 and from 1")
        tokenizer = Tokenizer(TextInputs.of(self.spec).tokenizer)
        settings = GenerationSettings(temperature=temperature, top_k=None, top_p=None, length=length, seed=seed)
        begun = tokenizer.encode(prompt).tolist()
        return tokenizer.decode([*begun, *generate(self.network, begun, tokenizer=tokenizer.description, settings=settings)])

    def values(self, given: Any) -> Any:
        """Return the inputs as `LoadedModel.predict` takes them. No string is a path here: it would be that of a file of the server."""
        inputs: Any = self.spec.inputs
        kind = inputs.kind
        if kind == "table":
            names = {str(column.name): column.name for column in inputs.columns}  # JSON has no numbers as names
            if hasattr(given, "columns"):
                return given.rename(columns=lambda name: names.get(str(name), name))
            if hasattr(given, "to_dict"):  # a row of pandas
                given = [given.to_dict()]
            if isinstance(given, dict):  # of columns
                given = [dict(zip(given, cells, strict=True)) for cells in zip(*map(np.atleast_1d, given.values()), strict=True)]
            rows = list(np.atleast_1d(np.asarray(given, dtype=object)))
            if not rows or not all(isinstance(row, dict) for row in rows):
                raise ValueError("the input is no rows of a table: send dicts from the names of columns to values")
            return [
                {names.get(str(name), name): getattr(cell, "item", lambda cell=cell: cell)() for name, cell in row.items()} for row in rows
            ]
        if kind in ("text", "text_pair"):
            texts = np.asarray(given, dtype=object)
            if texts.shape[1:] not in ((), (1,)) or not texts.size or not all(isinstance(text, str) for text in texts.flat):
                raise ValueError("the input contains something else than texts: send a list of texts")
            return texts.ravel().tolist()
        array, dtype = np.asarray(given), np.dtype(inputs.dtype)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        if (
            not array.ndim
            or array.dtype.kind not in "iu"
            or (array.size and limits and not limits.min <= array.min() <= array.max() <= limits.max)
        ):
            raise ValueError(
                f"the input has values of type {array.dtype} or out of range: send a list of {kind}s, whole numbers from 0 to 255"
            )
        return list(array.astype(dtype))


set_model(ServedModel())
