"""Attention over KV in blocks: one protocol (`backend`), and its implementations."""
