"""What can become of a URL, and the report of how many ended how."""

import collections
import dataclasses

_NUM_EXAMPLES = 3

DOCUMENT = "document"
RAW_PAGE = "page kept"
TRANSIENT = frozenset(
    {
        "time limit",
        "name not resolved",
        "no connection",
        "connection broken",
        "server error",
        "asked to wait",
        "robots.txt unavailable",
        "host given up",
    }
)
"""Outcomes that another attempt may change."""
OF_HOST = TRANSIENT - {"server error", "host given up"}
"""Failures that speak of the whole host."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a URL ended.

    Attributes:
        url: As in the list.
        kind: A short phrase from a small set.
        detail: What is particular to this one.
        status: Of the last response; 0 where there was none.
        final_url: Where redirects led; empty where there were none.
        seconds: That were spent on requests.
    """

    url: str
    kind: str
    detail: str = ""
    status: int = 0
    final_url: str = ""
    seconds: float = 0.0

    def as_record(self) -> dict[str, object]:
        """For the journal: without what is empty."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name))}


class OutcomeCounts:
    """How many URLs ended how, with the first examples."""

    def __init__(self) -> None:
        self.by_kind: collections.Counter[str] = collections.Counter()
        self._examples: dict[str, list[str]] = {}

    @property
    def total(self) -> int:
        """URLs that ended."""
        return self.by_kind.total()

    def add(self, outcome: Outcome) -> None:
        """Counts one more."""
        self.by_kind[outcome.kind] += 1
        if len(examples := self._examples.setdefault(outcome.kind, [])) < _NUM_EXAMPLES:
            examples.append(outcome.url + (f" ({outcome.detail})" if outcome.detail else ""))

    def take_back(self, kind: str) -> None:
        """Counts one less: the URL is fetched again."""
        self.by_kind[kind] -= 1

    def table(self, what: str = "URLs") -> str:
        """A line for each kind, the most frequent first; failures with an example."""
        rows = sorted(
            ((kind, count) for kind, count in self.by_kind.items() if count), key=lambda row: -row[1]
        )
        width = max((len(kind) for kind, _ in rows), default=4)
        lines = []
        for kind, count in [*rows, (what, self.total)]:
            example = self._examples.get(kind, [""])[0]
            shown = "" if kind in (DOCUMENT, RAW_PAGE) or not example else f"e.g. {example}"
            share = f"{count / max(1, self.total):7.1%}"
            lines.append(f"{kind:<{width}}  {count:>12,}  {share}  {shown}".rstrip())
        return "\n".join(lines)
