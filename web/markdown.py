"""Model text as safe HTML: Markdown without raw HTML, sanitized again afterwards."""

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

from viva.reports.tables import escape_controls

FOLD_LENGTH = 6_000  # characters; longer texts are folded on a page
PLAIN_LENGTH = 50_000  # characters; longer texts are shown as plain text, because they are rarely meant as Markdown
MAX_LENGTH = 200_000  # characters; longer texts are truncated
_MAX_DEPTH = 20  # maximum depth of nested lists and quotes; the parser drops deeper ones
_SCHEMES = frozenset({"http", "https", "mailto"})
_SCHEME_PATTERN = re.compile("|".join(f"{scheme}:" for scheme in sorted(_SCHEMES)), re.IGNORECASE)
_TAGS = frozenset(
    {"p", "br", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6"}
    | {"hr", "table", "thead", "tbody", "tr", "th", "td", "a"}
)
_ATTRIBUTES = {"a": {"href"}, "ol": {"start"}}


@dataclass(slots=True, frozen=True)
class ModelText:
    """A text as HTML. `folded`: at first, show only its beginning. `note`: how it differs from the original."""

    html: Markup
    folded: bool = False
    note: str = ""


def render_model_text(text: str, *, plain: bool = False) -> ModelText:
    """Render a model's text as HTML. `plain`: show the text without interpreting Markdown."""
    length = len(text)
    source = escape_controls(text[:MAX_LENGTH].encode("utf-8", "replace").decode().replace("\r\n", "\n"))
    note = ""
    if length > MAX_LENGTH:
        note = f"The first {MAX_LENGTH:,} of {length:,} characters, as plain text. The rest is not shown."
    elif length > PLAIN_LENGTH and not plain:
        note = f"{length:,} characters, shown as plain text."
    tokens = [] if plain or length > PLAIN_LENGTH else _make_parser().parse(source)
    if any(token.level >= _MAX_DEPTH - 1 for token in tokens):
        tokens, note = [], "Nested too deeply for Markdown, so shown as plain text."
    return ModelText(_sanitize(tokens) if tokens else _escape(source), length > FOLD_LENGTH, note)


def _escape(text: str) -> Markup:
    return Markup('<pre class="written">') + Markup(escape(text)) + Markup("</pre>") if text.strip() else Markup("")


def _sanitize(tokens: list[Token]) -> Markup:
    parser = _make_parser()
    clean = nh3.clean(
        parser.renderer.render(tokens, parser.options, {}),
        tags=set(_TAGS),
        attributes={name: set(names) for name, names in _ATTRIBUTES.items()},
        url_schemes=set(_SCHEMES),
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return Markup(escape_controls(clean))  # character references can stand for control characters, too


@cache
def _make_parser() -> MarkdownIt:
    """Make a CommonMark parser with tables; it keeps line breaks and treats reference definitions as text."""
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _MAX_DEPTH}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable("reference")
    parser.validateLink = _is_external_link  # type: ignore[method-assign]
    return parser


def _is_external_link(url: str) -> bool:
    """Return True if a URL may become a link; a relative one may not, because it would lead to our own pages."""
    if not _SCHEME_PATTERN.match(url.strip()):
        return False
    try:
        return urlsplit(url).scheme.lower() in _SCHEMES
    except ValueError:
        return False


class _Renderer(RendererHTML):
    """Renderer that replaces an image by its caption and address."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        caption = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return f"[image, not loaded: {escape(caption)} {escape(str(token.attrGet('src') or ''))}]"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render a code block, preceded by its info string."""
        words = tokens[idx].info.strip()
        language = f"<p><code>{escape(words)}</code></p>\n" if words else ""
        return f"{language}<pre><code>{escape(tokens[idx].content)}</code></pre>\n"


# Template filters for model text.
MODEL_TEXT_FILTERS = {"model": render_model_text, "written": lambda text: render_model_text(text, plain=True)}
