"""Whole runs of traffic, simulated or live, and what is computed of them."""
