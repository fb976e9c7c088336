"""The stages of a recipe: this union is their registry.

To add one, write its file, a child of ``MapStage`` or ``BarrierStage``, and add its class here.
"""

from typing import Annotated

from groundup.core.config import ByKind
from groundup.corpus.clean import Clean
from groundup.corpus.dedup.exact import ExactDedup
from groundup.corpus.import_sources import Import
from groundup.corpus.shuffle import Shuffle

AnyStage = Annotated[Import | Clean | ExactDedup | Shuffle, ByKind]

__all__ = ["AnyStage", "Clean", "ExactDedup", "Import", "Shuffle"]
