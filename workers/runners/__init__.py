"""How a step is computed, and how its tokens are drawn."""
