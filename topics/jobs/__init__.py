"""Offline batch jobs: OpenAI's batch format over the request and reply topics.

Knows files of rows, the records in which a job's state lives, and what becomes of each row. Does not know schedulers or
models: to a worker a row is a request like any other.
"""
