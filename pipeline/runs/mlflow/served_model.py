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
        from pipeline.core.registry import READERS
        from pipeline.inference import model_file

        path = Path(context.artifacts[MODEL])
        self.network, manifest = model_file.load(path, complete=True)
        self.spec = manifest.spec
        self.reader = READERS.module(self.spec.inputs.kind).Reader(self.spec.inputs)
        self.model = None if self.spec.targets.stored == "windows" else load_model(path)

    def predict(self, model_input: np.ndarray, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:  # type: ignore[override]  # MLflow warns about other annotations
        """Return a record for each input. Raises MlflowException (HTTP status 400) for invalid input."""
        try:
            values = self.reader.values(model_input)  # no string is a path here: it would be that of a file of the server
            if self.model is None:
                return [{"text": self.continued(text, **GENERATION | (params or {}))} for text in values]
            found = list(self.model.predict(values, **PARAMS | (params or {})))
        except ValueError as error:  # also a Refusal
            raise MlflowException(f"{error}", error_code=INVALID_PARAMETER_VALUE) from None
        return [{key: value for key, value in each.record().items() if key != "input"} for each in found]

    def continued(self, prompt: str, *, temperature: float, length: int, seed: int) -> str:
        """Return the text that a language model writes after `prompt`, at most `length` tokens."""
        from pipeline.evaluate.generation import GenerationSettings, generate

        if not 0 <= temperature < np.inf or length < 1:
            raise ValueError(f"temperature is {temperature} and length is {length}: write numbers from 0 and from 1")
        settings = GenerationSettings(temperature=temperature, top_k=None, top_p=None, length=length, seed=seed)
        begun = self.reader.tokenizer.encode(prompt).tolist()
        written = generate(self.network, begun, tokenizer=self.reader.tokenizer.description, settings=settings)
        return str(self.reader.tokenizer.decode([*begun, *written]))


set_model(ServedModel())
