from .stub import Unreadable, expand, read_dialogs
