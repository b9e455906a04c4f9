"""Fixtures of the chaos tests."""

import uuid

import pytest


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics, groups and transactional ids that no other test has."""
    return f"c{uuid.uuid4().hex[:12]}"
