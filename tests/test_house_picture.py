"""The picture of the house shows every room: each folder of a floor, and each system."""

from __future__ import annotations

from pathlib import Path
from tomllib import loads

ROOT = Path(__file__).parent.parent


def test_every_room_is_in_the_picture_and_in_the_list() -> None:
    picture = (ROOT / "docs" / "images" / "house.svg").read_text()
    listed = (ROOT / "docs" / "architecture.md").read_text()
    floors = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"viva"}
    rooms = {path.parent.name for floor in floors for path in (ROOT / floor).glob("*/__init__.py")}
    systems = loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["viva.scenarios"]
    assert {"studies", "rooms"} <= rooms
    assert len(systems) >= 8
    for room in sorted({*floors, *rooms}):
        assert f"{room}/" in picture, f"docs/images/house.svg lacks the room {room}/"
        assert f"{room}/" in listed, f"docs/architecture.md lacks the room {room}/"
