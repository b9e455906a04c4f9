"""Composition and I/O: a worker process, its engine, its edges to Kafka, telemetry and the command line."""
