"""Fixtures that tests of several folders share."""

from tests.built import built, of_all_workers, programs

__all__ = ["built", "of_all_workers", "programs"]
