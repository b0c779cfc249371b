"""Fixtures of these tests: an agent of their own."""

from tests.support.runs.own_agent import client, home

__all__ = ["client", "home"]
