"""Every test starts with a session for which no launcher has claimed ranks."""

import pytest

from mspc.mindspore_api.state import Session


@pytest.fixture(autouse=True)
def without_claim(session: Session) -> None:
    session.claimed = 0
