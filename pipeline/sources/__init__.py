"""Open family: one module is one dataset or format and one value of `source.name`."""
