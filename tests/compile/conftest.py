"""Fixtures that tests of several folders share."""

from tests.built import of_all_workers, programs

__all__ = ["of_all_workers", "programs"]
