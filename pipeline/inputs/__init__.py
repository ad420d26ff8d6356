"""A folder for each kind of inputs. Its name is the `kind` of the inputs in spec.json."""
