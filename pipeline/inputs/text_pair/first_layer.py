"""The preprocessing of pairs of texts: none, as of texts. The network takes the two texts out of the rows of tokens by `TextPairInputs.texts`."""

from pipeline.inputs.text import first_layer as text

Preprocessing = text.Preprocessing
