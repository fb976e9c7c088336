"""Runs tasks that leave done-markers: one after the other, on processes, on Ray."""
