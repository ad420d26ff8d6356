"""Sources of data. Each module reads one dataset or file format; its name is a value of `source.name`. To add a source, add a module."""
