"""Rendered parts of pages that are kept in memory."""

from __future__ import annotations

from jinja2 import Environment

from nosology.claims.encounter import guess_setting
from nosology.text.stems import stem
from nosology.workbench.html_fragments import FragmentCache, forget_texts

TEMPLATE = "{% macro part(word, n) %}<b>{{ word }}{{ n }}</b>{% endmacro %}{{ remember(part, word, n) }}"


def test_a_fragment_depends_on_all_arguments_and_is_escaped_once():
    cache = FragmentCache()
    environment = Environment(autoescape=True)
    environment.globals["remember"] = cache.render
    template = environment.from_string(TEMPLATE)
    for _ in range(2):
        assert template.render(word="<i>", n=1) == "<b>&lt;i&gt;1</b>"
        assert template.render(word="<i>", n=2) == "<b>&lt;i&gt;2</b>"
    assert len(cache._parts) == 2


def test_the_least_recently_used_fragment_is_dropped():
    rendered = []

    class Part:
        name = "part"

        def __call__(self, word):
            rendered.append(word)
            return word

    cache, part = FragmentCache(2), Part()
    for word in "abacab":
        cache.render(part, word)
    assert rendered == ["a", "b", "c", "b"]


def test_a_key_stands_for_arguments_without_a_hash():
    class Row:
        name = "row"

        def __call__(self, row):
            return str(row["id"])

    cache = FragmentCache()
    assert [cache.render(Row(), {"id": n}, key=n) for n in (1, 2, 1)] == ["1", "2", "1"]


def test_texts_are_forgotten_and_tables_are_kept():
    class Part:
        name = "part"

        def __call__(self, word):
            return word

    cache = FragmentCache()
    cache.render(Part(), "Mr. Smith")
    guess_setting("Mr. Smith was discharged home.")
    stem("admissions")
    assert cache._parts and guess_setting.cache_info().currsize
    forget_texts()
    assert not cache._parts and not guess_setting.cache_info().currsize
    assert stem.cache_info().currsize
