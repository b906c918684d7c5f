"""What every test runs under. No deadline: machines are shared, and a slow example is no fault."""

import pytest
from hypothesis import settings

settings.register_profile("tito", deadline=None, print_blob=True)
settings.load_profile("tito")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What installs things goes first: it waits more than it computes, and the other worker has the rest meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("installs") is None)
