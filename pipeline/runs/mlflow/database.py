"""Opens the database of an MLflow store in one process at a time, and creates that of a SQLite file whole, or not at all."""

import contextlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pipeline.core import files
from pipeline.core.refusal import Refusal
from pipeline.runs.mlflow.address import Address


def connect_once(address: Address) -> None:
    """Connect to the database and disconnect. Raises SQLAlchemy's exceptions at once, where MLflow would try again for minutes."""
    from sqlalchemy import create_engine

    engine = create_engine(address.for_mlflow)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


@contextlib.contextmanager
def locked_database(address: Address) -> Iterator[None]:
    """Hold a lock in the block, so that only one process at a time opens the database. If the SQLite file does not exist, create it first.

    Raises Refusal if the SQLite file cannot be opened, for example because it is damaged. Passes on OSError, the error of a database that
    is locked by another process, and all errors of databases other than SQLite.
    """
    from sqlalchemy import make_url

    url = make_url(address.for_mlflow)
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    lock = Path(f"{database or address.root / '.pipeline' / 'store'}.lock")
    # MLflow creates files in the working directory, and these should be in the root.
    with files.locked(lock, wait=True), contextlib.chdir(address.root):
        try:
            if database and not database.exists():
                create(database, artifacts=address.root / "mlruns")
            yield
        except Exception as error:  # of SQLite, Alembic or MLflow
            if database is None or isinstance(error, OSError) or "database is locked" in str(error):
                raise
            raise Refusal(unusable(database, error)) from None
        finally:
            lock.unlink()


def create(database: Path, *, artifacts: Path) -> None:
    """Create the SQLite file of an MLflow store under a temporary name, and rename it when complete.

    MLflow creates the tables by dozens of migrations. A kill during a migration leaves a file that no later attempt can complete. The
    caller must hold the lock of `locked_database`. `artifacts` is the folder where MLflow will store artifacts.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for leftover in database.parent.glob(f".{database.name}.*.draft*"):  # including SQLite's own journal files
        leftover.unlink()
    with contextlib.suppress(FileExistsError), files.replacing(database) as draft:
        SqlAlchemyStore(f"sqlite:///{draft}", artifacts.as_uri()).engine.dispose()  # type: ignore[no-untyped-call]  # MLflow's
        if database.exists():
            raise FileExistsError(database)  # created by a server that was started in the meantime


def unusable(database: Path, error: Exception) -> str:
    """Return the message for the SQLite file `database`, which MLflow cannot open: the reason, taken from `error`, and the remedies."""
    cause = str(error).partition(". ")[0].splitlines()[0]
    return (
        f"{database}: MLflow {metadata.version('mlflow')} cannot open this SQLite file ({cause}). If an older MLflow wrote it, copy it and run "
        f"`mlflow db upgrade sqlite:///{database}`. If a newer MLflow wrote it, install that version. If it is damaged, move it away "
        f"(`mv {database} {database}.damaged`) and restore a backup, or run `python -m pipeline sync` to write a new one"
    )
