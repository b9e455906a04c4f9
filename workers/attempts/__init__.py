"""Which requests a worker has begun, what a crash is blamed on, and how a stream goes on after one."""
