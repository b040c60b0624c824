"""What is said of a file whose form is of another version of viva: both versions, and what to do.

Files of earlier versions are read as far as anybody may have some (each reader knows how); a form that is newer, or
none at all, is refused in these words.
What never belongs here: reading files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def other_version(what: str, found: Any, known: Iterable[int | str]) -> str:
    """Why a file cannot be used. ``what``: the form's name (``journal schema``); ``found``: the version that the file
    names, None where it names none; ``known``: the versions that are read here.
    """
    versions = [str(one) for one in known]
    reads = versions[0] if len(versions) == 1 else f"{', '.join(versions[:-1])} and {versions[-1]}"
    named = "of no version" if found is None else f"{what} {str(found)[:40]}"
    newer = str(found).isdecimal() and all(one.isdecimal() and int(found) > int(one) for one in versions)
    advice = "a newer viva wrote it: use that one" if newer else "the file is damaged: restore it from a copy"
    return f"{named}, this version of viva reads {what} {reads}; {advice}"
