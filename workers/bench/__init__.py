"""What `headrace bench` measures."""
