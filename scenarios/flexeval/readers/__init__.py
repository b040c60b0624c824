from .files import expand, read_all, read_dialogs
from .records import Unreadable

__all__ = ["Unreadable", "expand", "read_all", "read_dialogs"]
