"""The sources: each module is one dataset or format and one value of `source.name`. Add a module to add a source."""
