"""Answers on their way out: text, deltas and terminal replies."""
