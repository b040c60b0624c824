"""What a model wrote as HTML that can do nothing: Markdown without raw HTML, cleaned once more.

No image is loaded, links lead only to http, https and mailto, and control characters are visible. The
time is linear in the length of the text: what is longer than a bound, or nested too deeply, is shown as plain text, and
what is longer than another is cut.
What never belongs here: pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from urllib.parse import urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup

from viva.reports.controls import harmless

FOLDED = 6_000  # characters: a page shows the beginning of longer texts until it is asked for the whole
PLAIN = 50_000  # longer ones are plain text: what is so long is seldom meant as Markdown
WHOLE = 200_000  # longer ones are cut
_DEEPEST = 20  # nested lists and quotes; the parser would leave out what is deeper
_SCHEMES = frozenset({"http", "https", "mailto"})
_WRITTEN = re.compile("|".join(f"{one}:" for one in sorted(_SCHEMES)), re.IGNORECASE)
_TAGS = frozenset(
    {"p", "br", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6"}
    | {"hr", "table", "thead", "tbody", "tr", "th", "td", "a"}
)
_ATTRIBUTES = {"a": {"href"}, "ol": {"start"}}


@dataclass(slots=True, frozen=True)
class ModelText:
    """A text as HTML. ``folded``: a page shows its beginning first. ``note``: what is not as it was written."""

    html: Markup
    folded: bool = False
    note: str = ""


def model_text(text: str, *, plain: bool = False) -> ModelText:
    """A model's text as HTML; ``plain``: the very characters, without reading them as Markdown."""
    length = len(text)
    shown = harmless(text[:WHOLE].encode("utf-8", "replace").decode().replace("\r\n", "\n"))
    note = ""
    if length > WHOLE:
        note = f"The first {WHOLE:,} of {length:,} characters, as plain text. The rest is not shown."
    elif length > PLAIN and not plain:
        note = f"{length:,} characters, shown as plain text."
    tokens = [] if plain or length > PLAIN else _parser().parse(shown)
    if any(token.level >= _DEEPEST - 1 for token in tokens):
        tokens, note = [], "Nested too deeply for a layout, so shown as plain text."
    return ModelText(_html(tokens) if tokens else _as_written(shown), length > FOLDED, note)


def _as_written(text: str) -> Markup:
    return Markup('<pre class="written">') + Markup(escape(text)) + Markup("</pre>") if text.strip() else Markup("")


def _html(tokens: list[Token]) -> Markup:
    parser = _parser()
    clean = nh3.clean(
        parser.renderer.render(tokens, parser.options, {}),
        tags=set(_TAGS),
        attributes={name: set(found) for name, found in _ATTRIBUTES.items()},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return Markup(harmless(clean))  # character references can stand for control characters too


@cache
def _parser() -> MarkdownIt:
    """CommonMark with tables; ends of lines stay, and definitions of references are text like any other."""
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _DEEPEST}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable("reference")
    parser.validateLink = _leads_out  # type: ignore[method-assign]
    return parser


def _leads_out(url: str) -> bool:
    """Whether a link may be one: a relative address would lead to pages of ours."""
    if not _WRITTEN.match(url.strip()):
        return False
    try:
        return urlsplit(url).scheme.lower() in _SCHEMES
    except ValueError:
        return False


class _Renderer(RendererHTML):
    """An image is words: what it shows, and where it would have been loaded from."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        shown = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return f"[image, not loaded: {escape(shown)} {escape(str(token.attrGet('src') or ''))}]"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A block of code, with the words that stand behind its fence."""
        words = tokens[idx].info.strip()
        named = f"<p><code>{escape(words)}</code></p>\n" if words else ""
        return f"{named}<pre><code>{escape(tokens[idx].content)}</code></pre>\n"
