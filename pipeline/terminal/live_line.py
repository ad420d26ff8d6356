"""One line at the bottom of a terminal that is replaced again and again. What is printed meanwhile appears above it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ERASE_BELOW = "\r\x1b[J"


class LiveLine:
    """The line. Between two writes, the cursor is visible and at its first column.

    So a killed process leaves a usable terminal. And when the terminal becomes narrower and wraps the line, the cursor stays at its
    beginning, so that the whole line is erased.
    """

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.fields: Sequence[str] = ()
        self.is_drawn = False

    def show(self, fields: Sequence[str]) -> None:
        """Show `fields`, the most important one first, as far as they fit in one line of the terminal."""
        self.fields = fields
        self.draw()

    def draw(self) -> None:
        from rich.text import Text  # late, as everything of rich: only needed on a terminal

        fields = list(self.fields)
        while len(fields) > 1 and Text(", ".join(fields)).cell_len >= self.console.width:
            fields.pop()
        text = Text(", ".join(fields), style="dim", no_wrap=True, overflow="ellipsis")
        text.truncate(self.console.width - 1)  # in the last column, some terminals would already wrap
        with self.console.capture() as drawn:
            self.console.print(text, end="\r")
        self.console.file.write(ERASE_BELOW + drawn.get())
        self.console.file.flush()
        self.is_drawn = True

    def erase(self) -> None:
        if self.is_drawn:
            self.console.file.write(ERASE_BELOW)
            self.console.file.flush()
            self.is_drawn = False


class Above:
    """A text stream that erases the line before it writes to `stream`.

    If `stream` is a terminal, the line is drawn again once a text has ended its own line. If it is a pipe, such as that of `| tee log`, its
    reader may print the text on the same terminal a little later, so the line stays away until it is shown again.
    """

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self.stream, self.line, self.redraws = stream, line, stream.isatty()

    def write(self, text: str) -> int:
        self.line.erase()
        count = self.stream.write(text)
        self.stream.flush()
        if self.redraws and text.endswith("\n") and self.line.fields:
            self.line.draw()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def live_line(stdout: TextIO, stderr: TextIO) -> Iterator[LiveLine]:
    """Show a line on the terminal `stderr` within the block, and erase it at the end. Nothing is drawn before the first `show`.

    What is written to `sys.stdout` and `sys.stderr` appears above the line. `stdout` may be a file or a pipe.
    """
    from rich.console import Console

    line = LiveLine(Console(file=stderr, highlight=False))
    with ExitStack() as redirected:
        redirected.callback(line.erase)
        redirected.enter_context(redirect_stderr(Above(stderr, line)))
        redirected.enter_context(redirect_stdout(Above(stdout, line)))
        yield line
