"""The preprocessing of pairs of texts: none, as of texts. The network takes the two texts out of the rows of tokens by `TextPairInputs.texts`."""

from pipeline.inference.inputs import text

Preprocessing = text.Preprocessing
