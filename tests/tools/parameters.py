"""The text of a parameter file, which tests change key by key."""

from pathlib import Path


class Parameters:
    """A parameter file with two levels of keys; `lines[n]` is line n + 1 of the file."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def line(self, dotted: str) -> int:
        """Return the line number, from 1, of a key such as `seed`, `train` or `train.steps`."""
        section, _, key = dotted.partition(".")
        number = next(number for number, line in enumerate(self.lines) if line.startswith(f"{section}:"))
        if key:
            number = next(at for at, line in enumerate(self.lines) if at > number and line.startswith(f"  {key}:"))
        return number + 1

    def put(self, dotted: str, value: str) -> int:
        """Write another value and return its line number."""
        return self.replace(dotted, f"{self.key(dotted)}: {value}")

    def rename(self, dotted: str, name: str) -> int:
        return self.replace(dotted, name + self.lines[self.line(dotted) - 1].strip().removeprefix(self.key(dotted)))

    def replace(self, dotted: str, text: str) -> int:
        number = self.line(dotted)
        self.lines[number - 1] = "  " * dotted.count(".") + text
        return number

    def delete(self, dotted: str) -> int:
        """Remove a key and return the line number of its section, or remove a section with its keys and return 1."""
        number = self.line(dotted)
        del self.lines[number - 1]
        if "." in dotted:
            return self.line(dotted.partition(".")[0])
        while number <= len(self.lines) and self.lines[number - 1].startswith("  "):
            del self.lines[number - 1]
        return 1

    def section(self, name: str, *lines: str) -> int:
        """Write other contents into a section and return its line number."""
        number = self.line(name)
        while number < len(self.lines) and self.lines[number].startswith("  "):
            del self.lines[number]
        self.lines[number:number] = [f"  {line}" for line in lines]
        return number

    def key(self, dotted: str) -> str:
        return dotted.rpartition(".")[2]

    def write(self) -> None:
        Path("params.yaml").write_text("\n".join(self.lines) + "\n", encoding="utf-8")
