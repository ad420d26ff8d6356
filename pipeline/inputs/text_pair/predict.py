"""Turns texts, the lines of text files and the fields of tables into the source texts of pairs, to use a model with nothing but its model file."""

from pipeline.inputs.text import predict as text
from pipeline.inputs.text.description import TextInputs
from pipeline.inputs.text_pair.description import TextPairInputs


class Reader(text.Reader):
    """Reads source texts for a model, as texts are read for a classification. A stored sample is a source text without a target text."""

    def __init__(self, inputs: TextPairInputs) -> None:
        super().__init__(TextInputs(length=inputs.length, tokenizer=inputs.tokenizer, column=inputs.column))
