"""A screen that does what a terminal does with the control sequences that charact and plain programs write."""

import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b([78DM])|(\r|\n|\x08)|([^\x1b\r\n\x08]+)")


class Screen:
    """Rows of text, a cursor and the rows that scroll; what scrolls off the first row is kept in `scrolled`."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_rows, self.num_columns = num_rows, num_columns
        self.rows = [""] * num_rows
        self.scrolled: list[str] = []
        self.row = self.column = 0
        self.top, self.bottom = 0, num_rows - 1
        self._saved = (0, 0)
        self._left = ""

    @property
    def is_whole(self) -> bool:
        return (self.top, self.bottom) == (0, self.num_rows - 1)

    def resize(self, num_rows: int, num_columns: int) -> None:
        """As xterm does: rows are lost or added at the bottom, unless the cursor is there; all of them scroll."""
        while len(self.rows) > num_rows and self.row >= num_rows:
            self.scrolled.append(self.rows.pop(0))
            self.row -= 1
        self.rows = (self.rows + [""] * num_rows)[:num_rows]
        self.num_rows, self.num_columns = num_rows, num_columns
        self.top, self.bottom = 0, num_rows - 1

    def feed(self, text: str) -> None:
        """Take in what was written; a sequence may come in pieces."""
        text = self._left + text
        end = 0
        while match := _TOKEN.match(text, end):
            end = match.end()
            parameters, final, single, control, plain = match.groups()
            if final:
                self._sequence(parameters, final)
            elif single:
                self._single(single)
            elif control:
                self._control(control)
            else:
                self._put(plain)
        self._left = text[end:]
        assert len(self._left) < 16, f"no sequence that this screen knows: {self._left[:16]!r}"

    def _put(self, text: str) -> None:
        for character in text:
            if self.column == self.num_columns:
                self.column = 0
                self._down()
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[:self.column] + character + row[self.column + 1:]
            self.column += 1

    def _control(self, control: str) -> None:
        if control == "\r":
            self.column = 0
        elif control == "\n":
            self._down()
        else:
            self.column = max(0, self.column - 1)

    def _down(self) -> None:
        if self.row == self.bottom:
            gone = self.rows.pop(self.top)
            if self.top == 0:
                self.scrolled.append(gone)
            self.rows.insert(self.bottom, "")
        elif self.row < self.num_rows - 1:
            self.row += 1

    def _single(self, final: str) -> None:
        if final == "7":
            self._saved = (self.row, self.column)
        elif final == "8":
            self.row, self.column = self._saved
        elif final == "D":
            self._down()
        else:
            raise AssertionError(f"no sequence that this screen knows: ESC {final}")

    def _sequence(self, parameters: str, final: str) -> None:
        numbers = [int(number or 0) for number in parameters.split(";")] if not parameters.startswith("?") else []
        first = numbers[0] if numbers else 0
        if final == "H":
            self.row = min(max(first, 1), self.num_rows) - 1
            self.column = min(max(numbers[1] if len(numbers) > 1 else 1, 1), self.num_columns) - 1
        elif final == "r":
            self.top = max(first, 1) - 1
            self.bottom = (numbers[1] if len(numbers) > 1 else self.num_rows) - 1
            self.row = self.column = 0
        elif final == "A":
            self.row = max(self.top if self.row >= self.top else 0, self.row - max(first, 1))
        elif final == "E":
            self.row, self.column = min(self.row + max(first, 1), self.num_rows - 1), 0
        elif final == "J":
            self.rows[self.row] = self.rows[self.row][:self.column]
            self.rows[self.row + 1:] = [""] * (self.num_rows - self.row - 1)
        elif final == "K":
            self.rows[self.row] = "" if first == 2 else self.rows[self.row][:self.column]
        elif final not in "mhl":  # colours and modes change no text
            raise AssertionError(f"no sequence that this screen knows: {parameters}{final}")
