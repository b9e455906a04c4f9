"""Where a model comes from, and how it is loaded and measured."""
