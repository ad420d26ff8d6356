"""A process that has imported MLflow and torch and forks MLflow servers and stages with their mirrors on request.

Importing MLflow takes longer than what these tests measure.
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from tests.forking import ForkServer, fork

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


class FaultServer(ForkServer):
    def __init__(self, log: Path) -> None:
        super().__init__("tests.faults.fork_server", log, ONE_THREAD)

    def fork(self, target: str, variables: dict[str, str], **arguments: Any) -> int:
        return int(self.ask(target=target, variables=variables, arguments=arguments))


class ForkedMirror(subprocess.Popen[bytes]):
    """In place of `python -m pipeline sync --follow`, started by a stage that has imported everything already."""

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_: Any) -> None:
        self.pid = fork(lambda: self._mirror(Path(command[-1]), env, stdout))
        self.returncode = None

    def _mirror(self, folder: Path, variables: dict[str, str], log: IO[bytes]) -> int:
        from pipeline.core.environment import Environment
        from pipeline.runs.mlflow import mirror

        os.setsid()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.closerange(3, 1024)  # as exec would: the stage's locks are among them
        os.environ.update(variables)
        mirror.START_AFTER_S = 0.0
        return mirror.follow(folder, Environment.read())

    def poll(self) -> int | None:
        if self.returncode is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.returncode = 0
        return self.returncode

    def __del__(self, *_: Any) -> None:
        """Popen.__init__ was not called, so there is nothing to clean up."""


def serve(*, folder: str, port: int) -> None:
    import uvicorn
    from mlflow.server.fastapi_app import app

    os.chdir(folder)
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = os.environ["_MLFLOW_SERVER_REGISTRY_STORE"] = f"sqlite:///{folder}/runs.db"
    os.environ |= {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": f"{folder}/artifacts",
    }
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def main() -> NoReturn:
    for heavy in ("mlflow.pytorch", "mlflow.server.fastapi_app", "torch.export._trace", "tests.runs.tiny"):
        import_module(heavy)
    from pipeline.runs.mlflow import mirror
    from tests.faults import stage

    mirror.subprocess = SimpleNamespace(Popen=ForkedMirror, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:

        def serve_request(target: str, variables: dict[str, str], arguments: dict[str, Any]) -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(2, 1)
            os.environ.update(variables)
            {"serve": serve, "stage": stage.main}[target](**arguments)

        print(fork(partial(serve_request, **json.loads(line))), flush=True)
    os.killpg(0, signal.SIGKILL)  # the tests have ended, in whatever way: leave no server behind
    sys.exit(0)


if __name__ == "__main__":
    main()
