"""Model text as harmless HTML: Markdown without raw HTML, sanitized once more."""

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

FOLD_LENGTH = 6_000  # characters: a page shows the beginning of longer texts until it is asked for the whole
PLAIN_LENGTH = 50_000  # longer ones are plain text: what is so long is seldom meant as Markdown
MAX_LENGTH = 200_000  # longer ones are cut
_MAX_DEPTH = 20  # nested lists and quotes; the parser would leave out what is deeper
_SCHEMES = frozenset({"http", "https", "mailto"})
_SCHEME_PATTERN = re.compile("|".join(f"{scheme}:" for scheme in sorted(_SCHEMES)), re.IGNORECASE)
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


def render_model_text(text: str, *, plain: bool = False) -> ModelText:
    """A model's text as HTML; ``plain``: the very characters, without reading them as Markdown."""
    length = len(text)
    source = escape_controls(text[:MAX_LENGTH].encode("utf-8", "replace").decode().replace("\r\n", "\n"))
    note = ""
    if length > MAX_LENGTH:
        note = f"The first {MAX_LENGTH:,} of {length:,} characters, as plain text. The rest is not shown."
    elif length > PLAIN_LENGTH and not plain:
        note = f"{length:,} characters, shown as plain text."
    tokens = [] if plain or length > PLAIN_LENGTH else _make_parser().parse(source)
    if any(token.level >= _MAX_DEPTH - 1 for token in tokens):
        tokens, note = [], "Nested too deeply for a layout, so shown as plain text."
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
    return Markup(escape_controls(clean))  # character references can stand for control characters too


@cache
def _make_parser() -> MarkdownIt:
    """CommonMark with tables; ends of lines stay, and definitions of references are text like any other."""
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": _MAX_DEPTH}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"]).disable("reference")
    parser.validateLink = _is_external_link  # type: ignore[method-assign]
    return parser


def _is_external_link(url: str) -> bool:
    """Whether a link may be one: a relative address would lead to pages of ours."""
    if not _SCHEME_PATTERN.match(url.strip()):
        return False
    try:
        return urlsplit(url).scheme.lower() in _SCHEMES
    except ValueError:
        return False


class _Renderer(RendererHTML):
    """An image is words: what it shows, and where it would have been loaded from."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        caption = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return f"[image, not loaded: {escape(caption)} {escape(str(token.attrGet('src') or ''))}]"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """A block of code, with the words that stand behind its fence."""
        words = tokens[idx].info.strip()
        language = f"<p><code>{escape(words)}</code></p>\n" if words else ""
        return f"{language}<pre><code>{escape(tokens[idx].content)}</code></pre>\n"


# Filters of templates that show what models said.
MODEL_TEXT_FILTERS = {"model": render_model_text, "written": lambda text: render_model_text(text, plain=True)}
