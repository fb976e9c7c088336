"""DeepSpeed's JSON config as settings of groundup, with what has no counterpart here."""
