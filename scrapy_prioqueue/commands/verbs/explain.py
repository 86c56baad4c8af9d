"""`scrapy frontier explain`: why a URL is not being fetched now."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rich.padding import Padding
from rich.text import Text
from scrapy import Request

from scrapy_prioqueue.codec.detached import named_callback
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.explain import reasons, situation_of
from scrapy_prioqueue.commands.listing import request_documents
from scrapy_prioqueue.commands.progress import looking
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.printable import clean


class ExplainVerb(Verb):
    name = "explain"
    summary = "why a URL is not being fetched now"
    syntax = "URL"
    examples = ("https://shop.example/product/1", "https://a.example/ --method POST")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("page", metavar="URL", help="URL as a spider would request it")
        parser.add_argument("--method", default="GET", help="HTTP method (default: %(default)s)")
        parser.add_argument("--body", default="", help="body, for example of a POST")
        parser.add_argument("--callback", metavar="METHOD", help="method of the spider (default: parse)")
        parser.add_argument(
            "--thorough", action="store_true", help="search all requests, and for other spellings of the URL"
        )

    def run(self, context: Context, options: Namespace) -> int:
        state = context.state()
        try:
            callback = named_callback(options.callback)
            request = Request(options.page, callback, method=options.method, body=options.body)
        except ValueError as error:
            raise Stop(f"{options.page!r} is not a URL: {error}", WRONG_USE) from None
        with looking(context):
            situation = situation_of(context, state, request, is_thorough=options.thorough)
        found = reasons(situation)
        requests = request_documents(situation.found, state.tiers)
        document = {"url": request.url, "is_seen": situation.is_seen, "reasons": found, "requests": requests}
        shown = (Padding(Text(clean(reason.text)), (0, 0, 0, 2)) for reason in found)
        context.output.found(document, request.url, *shown)
        return FINE if situation.is_known and not state.has_ended else NOTHING
