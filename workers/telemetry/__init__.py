"""What a worker tells of itself: metrics, traces, reports."""
