"""The format of `--help`: Scrapy's, with words and examples kept whole at any width of the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from scrapy.commands import ScrapyHelpFormatter


class VerbHelpFormatter(ScrapyHelpFormatter):
    """Scrapy's formatter, with two corrections.

    - Scrapy's takes each line that ends with a colon for a heading, also one in the middle of an option's help.
    - `argparse` breaks names such as `scrapy-redis` at their hyphens, and joins the lines of examples.
    """

    def _join_parts(self, part_strings: Iterable[str]) -> str:
        parts = list(part_strings)
        has_headings = parts[:1] == ["\n"] or (bool(parts) and parts[0].startswith("usage: "))
        # Scrapy's method looks for headings, and that of its base class doesn't.
        return super()._join_parts(parts) if has_headings else super(ScrapyHelpFormatter, self)._join_parts(parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else "\n".join(self._split_lines(text, width))


def sentence(summary: str) -> str:
    """Return the summary of a verb as a sentence."""
    return f"{summary[0].upper()}{summary[1:]}."


def examples_text(verb: str, examples: Sequence[str]) -> str:
    """Return the examples of a verb as the last section of its help."""
    lines = "".join(f"  scrapy frontier {verb} {example}".rstrip() + "\n" for example in examples)
    return f"Examples\n========\n{lines}"
