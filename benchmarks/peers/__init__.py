"""Engines side by side, each in a process and, where it is not ours, a virtual environment of its own."""
