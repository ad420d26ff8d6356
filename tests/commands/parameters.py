"""The text of a parameter file, spoiled key by key."""

from pathlib import Path


class Parameters:
    """Two levels of keys, as presets have them; `lines[n]` is line n + 1 of the file."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def line(self, dotted: str) -> int:
        """The number of the line of `seed`, `train` or `train.steps`, from 1."""
        section, _, key = dotted.partition(".")
        number = next(number for number, line in enumerate(self.lines) if line.startswith(f"{section}:"))
        if key:
            number = next(at for at, line in enumerate(self.lines) if at > number and line.startswith(f"  {key}:"))
        return number + 1

    def put(self, dotted: str, value: str) -> int:
        """Write another value; returns the line."""
        return self.replace(dotted, f"{self.key(dotted)}: {value}")

    def rename(self, dotted: str, name: str) -> int:
        return self.replace(dotted, name + self.lines[self.line(dotted) - 1].strip().removeprefix(self.key(dotted)))

    def replace(self, dotted: str, text: str) -> int:
        number = self.line(dotted)
        self.lines[number - 1] = "  " * dotted.count(".") + text
        return number

    def delete(self, dotted: str) -> int:
        """Remove a key; returns the line of the section that misses it, or 1 for a section, which goes with its keys."""
        number = self.line(dotted)
        del self.lines[number - 1]
        if "." in dotted:
            return self.line(dotted.partition(".")[0])
        while number <= len(self.lines) and self.lines[number - 1].startswith("  "):
            del self.lines[number - 1]
        return 1

    def section(self, name: str, *lines: str) -> int:
        """Write other contents into a section; returns its line."""
        number = self.line(name)
        while number < len(self.lines) and self.lines[number].startswith("  "):
            del self.lines[number]
        self.lines[number:number] = [f"  {line}" for line in lines]
        return number

    def key(self, dotted: str) -> str:
        return dotted.rpartition(".")[2]

    def write(self) -> None:
        Path("params.yaml").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
