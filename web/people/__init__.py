"""What pages that people act on share: secret links, sessions, the guard, model text as HTML, a layout."""
