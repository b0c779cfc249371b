"""Fixtures of unit tests in several folders."""

from tests.support.runs.own_agent import no_agent_stays

__all__ = ["no_agent_stays"]
