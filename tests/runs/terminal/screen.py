"""What a terminal shows after a program wrote to it: just the control sequences that the live line uses."""

import re

ESCAPE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """The rows of a terminal, and the place of its cursor. Any other control sequence, such as one that hides the cursor, is an error."""

    def __init__(self, width: int) -> None:
        self.width, self.rows, self.row, self.column = width, [""], 0, 0

    def write(self, text: str) -> None:
        position = 0
        while position < len(text):
            found = ESCAPE.match(text, position)
            if found:
                assert (found[2], found[1] == "") in (("m", False), ("J", True)), repr(found[0])
                if found[2] == "J":
                    self.rows[self.row :] = [self.rows[self.row][: self.column]]
                position = found.end()
            else:
                self.put(text[position])
                position += 1

    def put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            assert character.isprintable(), repr(character)
            if self.column == self.width:
                self.put("\n")
                self.column = 0
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1
