"""What models write, as HTML: read as Markdown, and nothing in it can run, load, or pass for ours."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.web.markdown import FOLD_LENGTH, MAX_LENGTH, PLAIN_LENGTH, render_model_text

_SAFE_TAGS = {"p", "br", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "hr", "a"}
_SAFE_TAGS |= {"table", "thead", "tbody", "tr", "th", "td"} | {f"h{level}" for level in range(1, 7)}
_PIECES = st.sampled_from(
    ["<script>", "</script>", "<img src=x onerror=y>", "javascript:", "[a](", ")", "![", "](", "<", ">", "`", "```\n",
     "**", "_", "\n", "\n\n", "> ", "- ", "1. ", "|", "|-|\n", "&#x202e;", "&lt;", "\x1b", "\u202e", "\x00", "http://a.b/",
     "<a href='data:,'>", "[x]: javascript:y\n", "[x]", "a", " ", "    ", "\\", "\"", "'", "<!--", "<svg/onload=x>",
     "\ud800", "~~", "#", "data:text/html,", "vbscript:", "//evil", "mailto:a@b"]
)  # fmt: skip


class _Seen(HTMLParser):
    """Notes the tags, the attributes and the text of a page's part."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _seen(html: str) -> _Seen:
    seen = _Seen()
    seen.feed(str(html))
    seen.close()
    return seen


def test_markdown_is_read() -> None:
    html = render_model_text("# Title\n\n**bold** and `code`\nnext line\n\n- one\n- two\n\n|a|b|\n|-|-|\n|1|2|\n").html
    tags = " ".join(tag for tag, _ in _seen(html).tags)
    assert tags == "h1 p strong code br ul li li table thead tr th th tbody tr td td"


@given(st.lists(_PIECES, max_size=40).map("".join), st.booleans())
def test_nothing_can_run_load_or_turn(text: str, plain: bool) -> None:
    html = render_model_text(text, plain=plain).html
    for tag, attributes in _seen(html).tags:
        assert tag in _SAFE_TAGS
        assert set(attributes) <= {"href", "target", "rel", "start", "class"}
        assert attributes.get("class") in (None, "written")
        if (address := attributes.get("href")) is not None:
            assert address.lower().startswith(("http:", "https:", "mailto:"))
            assert "noopener" in (attributes["rel"] or "")
    assert not set(html) & {"\x1b", "\x00", "\u202e"}
    html.encode()


def test_images_are_words_and_no_link_leads_to_our_own_pages() -> None:
    seen = _seen(
        render_model_text("![pixel](http://evil.example/p.png) [up](/g/1/) [up](../x) [up](//evil.example)").html
    )
    assert "image, not loaded: pixel http://evil.example/p.png" in seen.text
    assert [tag for tag, _ in seen.tags] == ["p"]


def test_what_markdown_would_hide_is_shown() -> None:
    assert "evidence" in _seen(render_model_text("[a]: http://x.example 'evidence'").html).text
    deep = render_model_text("> " * 60 + "deep")
    assert "deep" in deep.html
    assert "plain" in deep.note
    assert "<!-- aside -->" in _seen(render_model_text("<!-- aside -->").html).text
    assert _seen(render_model_text("a **b** <i>", plain=True).html).text == "a **b** <i>"


def test_long_texts_are_folded_then_plain_then_cut() -> None:
    assert not render_model_text("x" * FOLD_LENGTH).folded
    assert render_model_text("x" * (FOLD_LENGTH + 1)).folded
    assert render_model_text("**x** " * 2000).html.startswith("<p><strong>")
    long = render_model_text("**x**" + "y" * PLAIN_LENGTH)
    assert "**x**" in long.html
    assert "plain text" in long.note
    huge = render_model_text("y" * (MAX_LENGTH + 5) + "END")
    assert huge.html.count("y") == MAX_LENGTH
    assert "END" not in huge.html
    assert "200,000 of 200,008" in huge.note


@pytest.mark.parametrize(
    "make",
    [lambda n: "[" * n, lambda n: "![a](" * (n // 5), lambda n: "*a **b " * (n // 7), lambda n: ">" * n,
     lambda n: "|a" * (n // 20) + "|\n" + "|-" * (n // 20) + "|\n" + "|\n" * (n // 2), lambda n: "<" * n,
     lambda n: "".join("`" * (i % 200 + 1) + "a" for i in range(n // 100)), lambda n: "- " * (n // 2)],
)  # fmt: skip
def test_hostile_texts_make_pages_of_bounded_size(make: object) -> None:
    assert callable(make)
    assert len(render_model_text(make(PLAIN_LENGTH)).html) < 30 * PLAIN_LENGTH
