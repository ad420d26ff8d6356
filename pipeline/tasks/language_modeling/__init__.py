"""Language modeling: the next token of a text."""
