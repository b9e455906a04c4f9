"""Requests on their way in: checked, held within bounds, tokenised."""
