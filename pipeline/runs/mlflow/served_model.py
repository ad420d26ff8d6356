"""The Python code of a model in MLflow, which MLflow loads and serves: it checks the input, runs the exported program, and names its outputs.

MLflow copies this file into the logged model, so the file must not import from `pipeline`.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel
from numpy.typing import NDArray

EXPORTED, DESCRIPTION = "exported", "description"
"""Names of the artifacts: the exported program, and a JSON object that describes its inputs and outputs (`saved_model.described`)."""
PARAMS = {"return": "probabilities", "top_k": 3}
"""The parameters of a request, with their defaults. `return` is `logits` or `probabilities`, and only a model of classes or labels has both."""
DIGITS = 7
"""Significant digits of a probability: those of float32."""


class ServedModel(PythonModel):
    """A model whose `predict` maps arrays or texts to the names of the most likely outputs and their probabilities, or to outputs (n, outputs), or texts to texts.

    Outputs are float32 logits, of a model for several labels a sample probabilities, or of a regression numbers in float64.

    The logged model has no input signature: with one, MLflow would cast inputs to the signature's dtype before they are checked here, and
    0.5 would become 0.
    """

    def load_context(self, context: Any) -> None:
        refuse_unknown_params()
        self.exported = mlflow.pyfunc.load_model(context.artifacts[EXPORTED])
        description = json.loads(Path(context.artifacts[DESCRIPTION]).read_bytes())
        kind = Pairs if description["pairs"] else Texts if description["tokenizer"] else Rows if description["table"] else Arrays
        self.inputs: Any = kind(description)
        self.names, self.thresholds = description["names"], description.get("thresholds")

    def predict(  # type: ignore[override]  # MLflow warns about other annotations
        self, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> NDArray[np.floating] | list[dict[str, Any]]:
        """Return a record for each input, or outputs (n, outputs). Raises MlflowException (HTTP status 400) for invalid input."""
        chosen: dict[str, Any] = PARAMS | (params or {})
        if chosen["return"] not in ("logits", "probabilities") or chosen["top_k"] < 1:
            raise refusal(f"params are {chosen}; `return` is `logits` or `probabilities`, and `top_k` is a number from 1 on")
        rows = self.inputs.rows(model_input)
        if isinstance(self.inputs, Pairs):
            return self.inputs.written(rows, self.exported.predict)
        logits: NDArray[np.floating] = self.exported.predict(rows)
        if isinstance(self.inputs, Texts) and self.inputs.per_token:
            logits = logits[np.arange(len(rows)), np.count_nonzero(rows != self.inputs.described.pad, axis=1) - 1]  # after the last token
        if chosen["return"] == "logits" or not self.names:
            return logits
        refuse_nonfinite(logits)
        if self.thresholds is not None:
            return [labels(row, self.names, self.thresholds, chosen["top_k"]) for row in logits.astype(np.float64)]
        return [record(row, self.names, chosen["top_k"]) for row in logits.astype(np.float64)]


class Arrays:
    """Inputs that are arrays of one shape and dtype, such as images."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.shape, self.dtype, self.expected = tuple(description["shape"]), np.dtype(description["dtype"]), description["expected"]

    def rows(self, given: Any) -> NDArray[Any]:
        """Return the input as an array (n, *shape). Raises MlflowException for another shape, or for values that the dtype cannot hold."""
        try:
            array = np.asarray(given)
        except ValueError:
            raise self.refusal("lists of different lengths") from None
        if array.shape[1:] != self.shape or not array.ndim:
            raise self.refusal(f"an array of shape {array.shape}")
        if array.dtype.kind not in ("iu" if self.dtype.kind in "iu" else "iuf"):
            raise self.refusal(f"values of type {array.dtype}")
        if array.size and self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            if not limits.min <= array.min() <= array.max() <= limits.max:
                raise self.refusal(f"values from {array.min()} to {array.max()}")
        return array.astype(self.dtype, copy=False)

    def refusal(self, found: str) -> MlflowException:
        return refusal(f"the input contains {found}; send {self.expected}")


class Rows:
    """Inputs that are rows of a table. The code that reads cells is that of the training: it was copied to the logged model, under another name."""

    def __init__(self, description: dict[str, Any]) -> None:
        package, self.expected = description["table"]["package"], description["expected"]
        self.refused = importlib.import_module(f"{package}.core.refusal").Refusal
        self.inputs = importlib.import_module(f"{package}.core.inputs.table").TableInputs.model_validate(
            description["table"]["description"]
        )

    def rows(self, given: Any) -> NDArray[np.float64]:
        """Return the stored rows (n, columns) of a DataFrame, of a list of dicts, or of a dict of columns.

        A Series of pandas is one row. Raises MlflowException if a column is missing or occurs twice, or if a cell is no number or date.
        """
        names = [*map(str, getattr(given, "columns", []))]
        if twice := [column.name for column in self.inputs.columns if names.count(str(column.name)) > 1]:
            raise refusal(f"the input has several columns called {twice[0]}; send {self.expected}")
        if hasattr(given, "to_dict") and not names:
            given = given.to_dict()
        if isinstance(given, dict):
            given = [dict(zip(given, cells, strict=False)) for cells in zip(*map(np.atleast_1d, given.values()), strict=True)]
        records = given.to_dict("records") if hasattr(given, "to_dict") else list(given)
        rows = []
        for number, record in enumerate(records):
            try:
                # MLflow may make arrays of one of the cells
                by_name = {str(name): cell.item() if hasattr(cell, "item") else cell for name, cell in record.items()}
                self.inputs.refuse_zero(by_name)
                rows.append(self.inputs.row([by_name[str(column.name)] for column in self.inputs.columns]))
            except AttributeError:
                raise refusal(f"the input contains something else than rows; send {self.expected}") from None
            except KeyError as error:
                raise refusal(f"row {number} of the input has no column {error}; send {self.expected}") from None
            except self.refused as error:
                raise refusal(f"row {number} of the input {error}") from None
        if not rows:
            raise refusal(f"the input has no rows; send {self.expected}")
        return np.stack(rows)


class Pairs:
    """Source texts, for each of which the model writes a target text. The exported program maps pairs to the logits of the tokens of the targets."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.texts = Texts(description | {"shape": [description["pairs"]["length"]]})
        module = importlib.import_module(f"{description['tokenizer']['package']}.core.inputs.text_pair")
        self.pairs = module.TextPairInputs.model_validate(description["pairs"])

    def rows(self, given: Any) -> NDArray[np.int32]:
        """Return the tokens of the source texts, (n, length). Raises MlflowException as `Texts.rows` does."""
        found = self.texts.rows(given)
        return np.pad(found, ((0, 0), (0, self.pairs.source.length - found.shape[1])), constant_values=self.pairs.pad)

    def written(self, sources: NDArray[np.int32], logits_of: Any) -> list[dict[str, Any]]:
        """Return a record of each text that the model writes: of each token, the most probable one. `logits_of` runs the exported program.

        The confidence is the geometric mean of the probabilities of its tokens, the end included.
        """
        tokenizer, pad = self.pairs.tokenizer, self.pairs.pad
        targets = np.full((len(sources), self.pairs.target.length), pad, np.int32)
        targets[:, 0], ended = tokenizer.end, np.zeros(len(sources), bool)
        totals, lengths = np.zeros((2, len(sources)))
        excluded = [number for number in (pad, tokenizer.unknown) if number is not None and number >= 0]
        for at in range(self.pairs.target_length - 1):
            rows = self.pairs.rows(sources, targets)
            # the pieces of a row that are not padding, and that with the next token; torch.export assumes two at least
            kept = max(2, int(self.pairs.lengths(rows).max()), -(-(at + 2) // self.pairs.widths[1]))
            logits = np.array(logits_of(rows[:, :kept]))[:, at]
            refuse_nonfinite(logits)
            logits[:, excluded] = -np.inf
            shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
            totals -= np.where(ended, 0.0, np.log(np.exp(shifted).sum(axis=1)))  # the log-probability of the most probable token
            lengths += ~ended
            targets[:, at + 1] = np.where(ended, pad, logits.argmax(axis=1))
            ended |= targets[:, at + 1] == tokenizer.end
            if ended.all():
                break
        texts, confidences = map(self.texts.tokenizer.decode, targets), np.exp(totals / lengths)
        return [{"text": text, "confidence": rounded(confidence)} for text, confidence in zip(texts, confidences, strict=True)]


class Texts:
    """Inputs that are texts. The tokenizer is that of the training: its code was copied to the logged model, under another name."""

    def __init__(self, description: dict[str, Any]) -> None:
        package = description["tokenizer"]["package"]
        tokenizers, texts = (importlib.import_module(f"{package}.core.{name}") for name in ("tokenizer", "inputs.text"))
        self.length, self.per_token, self.expected = description["shape"][0], description["per_token"], description["expected"]
        inputs = texts.TextInputs(length=self.length, tokenizer=description["tokenizer"]["description"])
        self.tokenizer, self.described = tokenizers.Tokenizer(inputs.tokenizer), inputs.tokenizer

    def rows(self, given: Any) -> NDArray[np.int32]:
        """Return the tokens of the texts, (n, longest). Raises MlflowException if the input is no list of texts, or if one has no tokens."""
        texts = np.asarray(given, dtype=object)
        texts = texts.ravel() if texts.ndim == 0 or texts.shape[1:] == (1,) else texts  # a text alone, or a table of one column
        if texts.ndim != 1 or not len(texts) or not all(isinstance(text, str) for text in texts):
            raise refusal(f"the input contains something else than texts; send {self.expected}")
        if self.per_token:
            encoded = [tokens[-self.length :] if len(tokens) else [self.described.end] for tokens in self.tokenizer.encode_all(texts)]
            rows = np.full((len(encoded), max(map(len, encoded))), self.described.pad, np.int32)
            for row, found in zip(rows, encoded, strict=True):
                row[: len(found)] = found
            return rows
        rows, lengths = self.tokenizer.rows(texts, self.length)
        if not lengths.all():
            raise refusal(f"text {int(lengths.argmin())} of the input has no tokens; send {self.expected}")
        tokens: NDArray[np.int32] = rows[:, : int(lengths.max())]
        return tokens


def record(logits: NDArray[np.float64], names: list[str], top_k: int) -> dict[str, Any]:
    """Return the most likely output and its softmax probability, and the `top_k` most likely ones. Ties go to the lower number."""
    exponentials = np.exp(logits - logits.max())
    probabilities = exponentials / exponentials.sum()
    best = np.argsort(-logits, kind="stable")[:top_k]
    top = [{"class": names[number], "probability": rounded(probabilities[number])} for number in best]
    return {**top[0], "top": top}


def labels(probabilities: NDArray[np.float64], names: list[str], thresholds: list[float], top_k: int) -> dict[str, Any]:
    """Return the labels whose probabilities are above their thresholds, the most likely first, and the `top_k` most likely ones."""
    order = np.argsort(-probabilities, kind="stable").tolist()
    top = [{"label": names[number], "probability": rounded(probabilities[number])} for number in order[:top_k]]
    return {"labels": [names[number] for number in order if probabilities[number] > thresholds[number]], "top": top}


def rounded(probability: float) -> float:
    return float(f"{probability:.{DIGITS}g}")


def refuse_nonfinite(outputs: NDArray[Any]) -> None:
    if not np.isfinite(outputs).all():
        raise MlflowException("the model's outputs are not finite: its training diverged, so train it again")


def refuse_unknown_params() -> None:
    """Make MLflow refuse params that this model does not have: it would remove them before `predict` is called, and answer without them."""
    pyfunc: Any = importlib.import_module("mlflow.pyfunc")  # `mlflow.pyfunc` may be a proxy, which loads it late
    enforce = pyfunc._enforce_params_schema  # private, but the logged model requires this version of MLflow

    def checked(params: Any, schema: Any) -> Any:
        is_ours = schema is not None and {spec.name for spec in schema.params} == {*PARAMS}
        if is_ours and isinstance(params, dict) and (unknown := sorted(map(str, params.keys() - PARAMS))):
            raise refusal(f"params has {', '.join(unknown)}, but this model knows only {' and '.join(PARAMS)}")
        return enforce(params, schema)

    pyfunc._enforce_params_schema = checked


def refusal(message: str) -> MlflowException:
    """Return the exception for an invalid request. A server answers it with HTTP status 400."""
    return MlflowException(message, error_code=INVALID_PARAMETER_VALUE)


set_model(ServedModel())
