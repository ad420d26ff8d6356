from collections.abc import Callable

from pipeline.environment import Environment
from pipeline.tracking.address import Address

Addressed = Callable[..., Environment]


def test_mlflow_is_given_the_address_without_the_password(addressed: Addressed) -> None:
    address = Address.of(addressed("https://someone:p%40ss@tracking.example:5000/path"))
    assert address.for_mlflow == "https://tracking.example:5000/path"
    assert address.credentials == ("someone", "p@ss")
    assert address.redacted("p%40ss and p@ss") == "*** and ***"


def test_the_password_of_a_database_is_redacted(addressed: Addressed) -> None:
    address = Address.of(addressed("postgresql://someone:hidden@host/runs"))
    assert not address.is_server
    assert "hidden" not in address.redacted(f"cannot reach {address.for_mlflow}")


def test_a_store_has_the_same_name_with_another_password(addressed: Addressed) -> None:
    keys = {Address.of(addressed(f"postgresql://someone:{password}@host/runs")).key for password in ("one", "two")}
    assert len(keys) == 1
    assert Address.of(addressed("http://host:5000")).key not in keys


def test_a_relative_database_lies_under_the_root(addressed: Addressed) -> None:
    environment = addressed("sqlite:///mine.db")
    assert Address.of(environment).for_mlflow == f"sqlite:///{environment.root}/mine.db"
    assert Address.of(addressed("sqlite:////absolute.db")).for_mlflow == "sqlite:////absolute.db"
