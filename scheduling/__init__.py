"""Who goes next: pure, synchronous, without a clock, threads, Kafka or torch.

Knows priority classes, queueing disciplines, costs and step plans. Does not know what a request says, how it
came or how a step is run.
"""
