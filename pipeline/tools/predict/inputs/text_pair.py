"""Turns texts, the lines of text files and the fields of tables into the source texts of pairs, to use a model with nothing but its model file."""

from pipeline.core.inputs.text import TextInputs
from pipeline.core.inputs.text_pair import TextPairInputs
from pipeline.tools.predict.inputs import text


class Reader(text.Reader):
    """Reads source texts for a model, as texts are read for a classification. A stored sample is a source text without a target text."""

    def __init__(self, inputs: TextPairInputs) -> None:
        super().__init__(TextInputs(length=inputs.length, tokenizer=inputs.tokenizer, column=inputs.column))
