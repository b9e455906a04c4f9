"""What `inference.control` says, obeyed by the running worker."""
