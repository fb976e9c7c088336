"""A terminal of 80 columns for stderr, which remembers what was shown."""

import io
import time


class Terminal(io.StringIO):
    """Takes the place of stderr."""

    def isatty(self):
        return True

    def fileno(self):
        raise OSError("no descriptor, so that its width is the usual one")

    def wait_for(self, text):
        """Until it was shown; the thread that shows it must be running."""
        while text not in self.getvalue():
            time.sleep(0.01)

    def live_lines(self):
        """What stood on the last line at times, without what was written above it."""
        last = (piece.rpartition("\n")[2] for piece in self.getvalue().split("\r\x1b[K"))
        return [line for line in last if line]

    def left(self):
        """What is to be seen in the end."""
        return "\n".join(line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n"))
