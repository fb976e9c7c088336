"""Some samples of a split as a whole of their own."""

import dataclasses

import numpy as np
import numpy.typing as npt

from groundup.tokens.sampling.dataset import Samples, Span


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """Samples [begin, begin + num_samples) in the order of a split; see ``Samples``.

    They have this one order: ``ordered`` gives them in it too.
    """

    whole: Samples
    begin: int
    num_samples: int

    @property
    def name(self) -> str:
        """See ``Samples.name``."""
        return self.whole.name

    @property
    def sequence_length(self) -> int:
        """See ``Samples.sequence_length``."""
        return self.whole.sequence_length

    @property
    def num_documents(self) -> int:
        """See ``Samples.num_documents``, of the whole split."""
        return self.whole.num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens of the samples, those that two share counted twice."""
        return self.num_samples * (self.sequence_length + 1)

    def batch(self, first_index: int, count: int, *, ordered: bool = False) -> npt.NDArray[np.int64]:
        """See ``Samples.batch``."""
        return self.whole.batch(self.begin + first_index, count)

    def document_starts(
        self, first_index: int, count: int, *, ordered: bool = False
    ) -> npt.NDArray[np.bool_]:
        """See ``Samples.document_starts``."""
        return self.whole.document_starts(self.begin + first_index, count)

    def spans(self, index: int, *, ordered: bool = False) -> list[Span]:
        """See ``Samples.spans``."""
        return self.whole.spans(self.begin + index)
