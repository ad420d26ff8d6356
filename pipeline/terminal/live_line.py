"""A status line at the bottom of a terminal, which is rewritten in place. Other output appears above it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ERASE_BELOW = "\r\x1b[J"


class LiveLine:
    """The status line. Between two writes, the cursor is visible and at the first column of the line.

    Therefore a killed process leaves a usable terminal. If the terminal becomes narrower and wraps the line, the cursor stays at the line's
    beginning, so that the next write erases the whole line.
    """

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.fields: Sequence[str] = ()
        self.is_visible = False

    def show(self, fields: Sequence[str]) -> None:
        """Show as many of `fields` as fit in one line of the terminal. The most important field is first."""
        self.fields = fields
        self.render()

    def render(self) -> None:
        """Write the line, without the fields that do not fit."""
        from rich.text import Text  # late, like all imports of rich, which is needed only on a terminal

        fields = list(self.fields)
        while len(fields) > 1 and Text(", ".join(fields)).cell_len >= self.console.width:
            fields.pop()
        text = Text(", ".join(fields), style="dim", no_wrap=True, overflow="ellipsis")
        text.truncate(self.console.width - 1)  # in the last column, some terminals would already wrap
        with self.console.capture() as rendered:
            self.console.print(text, end="\r")
        self.console.file.write(ERASE_BELOW + rendered.get())
        self.console.file.flush()
        self.is_visible = True

    def erase(self) -> None:
        """Erase the line if it is visible. Its fields are kept."""
        if self.is_visible:
            self.console.file.write(ERASE_BELOW)
            self.console.file.flush()
            self.is_visible = False


class Above:
    """A text stream that erases the status line before it writes to `stream`.

    If `stream` is a terminal, the status line is written again as soon as a text ends in a line feed. If `stream` is a pipe, such as that of
    `| tee log`, the reader of the pipe may print the text on the same terminal a little later, so the status line stays erased until `show`.
    """

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self.stream, self.line, self.restores = stream, line, stream.isatty()

    def write(self, text: str) -> int:
        self.line.erase()
        count = self.stream.write(text)
        self.stream.flush()
        if self.restores and text.endswith("\n") and self.line.fields:
            self.line.render()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def live_line(stdout: TextIO, stderr: TextIO) -> Iterator[LiveLine]:
    """Provide a status line on the terminal `stderr` within the block, and erase it at the end. It is empty before the first `show`.

    Text that is written to `sys.stdout` and `sys.stderr` appears above it. `stdout` may be a file or a pipe.
    """
    from rich.console import Console

    line = LiveLine(Console(file=stderr, highlight=False))
    with ExitStack() as redirected:
        redirected.callback(line.erase)
        redirected.enter_context(redirect_stderr(Above(stderr, line)))
        redirected.enter_context(redirect_stdout(Above(stdout, line)))
        yield line
