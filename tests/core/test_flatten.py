from pipeline.core.section import flatten, formatted, leaves


def test_sections_become_dotted_names() -> None:
    params = {"seed": 1, "model": {"name": "mlp", "stem": {"width": None}}, "sizes": [1, 2], "empty": {}}
    assert flatten(params) == {"seed": 1, "model.name": "mlp", "model.stem.width": None, "sizes": "[1, 2]", "empty": "{}"}


def test_a_separator_can_be_named() -> None:
    assert flatten({"test": {"accuracy_interval": {"low": 0.5}}}, "/") == {"test/accuracy_interval/low": 0.5}


def test_leaves_keep_their_types() -> None:
    assert dict(leaves({"a": {"b": [1], "c": "[1]"}, "empty": {}})) == {"a.b": [1], "a.c": "[1]", "empty": {}}


def test_values_are_formatted_as_in_yaml() -> None:
    assert [formatted(value) for value in (True, None, 0.1, "adam")] == ["true", "null", "0.1", "adam"]
