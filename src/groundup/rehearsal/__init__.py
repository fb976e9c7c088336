"""The rehearsal: a user's own run, shrunk, through every stage on this machine."""
