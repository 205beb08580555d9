"""What tests of this folder share: a program with a driver that needs no GPU."""

from __future__ import annotations

import pytest

from tests.host import Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("host"))
