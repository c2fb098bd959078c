"""Settings that every Python test shares."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# One profile for everybody: deterministic examples, and no deadline, since no test may depend on
# wall-clock time. HYPOTHESIS_PROFILE=soak looks further.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("soak", deadline=None, derandomize=False, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of shared reference data beside the repository, or skip."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared reference data at {folder}")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where no CUDA device is present."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
