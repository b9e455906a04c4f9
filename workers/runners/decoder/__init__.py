"""Our own lean forward of the Llama family: what a family is, its weights, and two ways to compute it."""
