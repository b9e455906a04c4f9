"""The engine's turn: requests arrive, run in steps, and leave with an answer."""
