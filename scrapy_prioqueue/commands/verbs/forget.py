"""`scrapy frontier forget`: delete the fingerprints of URLs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy import Request

from scrapy_prioqueue.codec.detached import named_callback
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, identity_of, operator_of


class ForgetVerb(Verb):
    name = "forget"
    summary = "forget the fingerprints of URLs; pending requests stay"
    syntax = "URL ..."
    examples = ("https://shop.example/product/1",)
    is_read = False
    takes_more = ("urls", str)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("urls", nargs="+", metavar="URL", help="URLs of GET requests")
        parser.add_argument("--callback", metavar="METHOD", help="method of the spider (default: parse)")
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        identity = identity_of(context)
        try:
            fingerprints = [identity(Request(url, named_callback(options.callback))) for url in options.urls]
        except ValueError as error:
            raise Stop(str(error), WRONG_USE) from error
        known = [fingerprint for fingerprint in fingerprints if fingerprint is not None]
        operator = operator_of(context)
        operator.check_may_forget()
        were = "was" if len(options.urls) == 1 else "were"
        what = f"forget that {counted(len(options.urls), 'URL')} {were} seen in frontier {context.name!r}"
        confirm(context, options, what)
        forgotten = operator.forget(known)
        unseen = [url for index, url in enumerate(options.urls) if index not in forgotten]
        told = f"{number(len(forgotten))} forgotten"
        told = told if forgotten else context.nothing(told)
        context.output.show(told, *(f"not seen: {url}" for url in unseen))
        return FINE if forgotten else NOTHING
