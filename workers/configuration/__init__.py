"""What a worker is told: files, environment and flags, checked as a whole."""
