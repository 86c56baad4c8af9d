"""The frontier that a command is about: settings, spider, name, connection and inspector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_prioqueue.commands.fingerprinters import equip, works_alone
from scrapy_prioqueue.commands.output import Output, counted, moment
from scrapy_prioqueue.commands.verb import Stop
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.redis.keys import connection_name
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.findings import State, Status
from scrapy_prioqueue.frontier.redis.operators.frontiers import others_of
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.hints import did_you_mean, frontier_command, nearest
from scrapy_prioqueue.settings import Config

NAME_SETTING = "PRIOQUEUE_NAME"

T = TypeVar("T")


class Context:
    """The arguments of every verb that don't come from its own options.

    Args:
        config: the validated settings, including the spider's.
        settings: Scrapy's settings, from which `config` was read.
        spider_class: class of the frontier's spider; None if the settings identify the frontier without one.
    """

    def __init__(
        self,
        config: Config,
        settings: Settings,
        output: Output,
        spider_class: type[Spider] | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.settings = settings
        self.output = output
        self.spider_class = spider_class
        self._arguments = arguments or {}
        self.so_far: Callable[[], str] | None = None
        """Returns how far an interrupted verb got; empty before its first step."""

    @property
    def name(self) -> str:
        return self.config.name

    @cached_property
    def link(self) -> Link:
        """Connection to the server; connects at first use."""
        config = self.config
        name = connection_name(self.name, "operator")
        return Link(config.redis_url, timeout_s=config.redis_timeout_s, options=config.redis_options, name=name)

    @cached_property
    def inspector(self) -> Inspector:
        return Inspector(self.link, self.name, lease_ttl_s=self.config.lease_ttl_s)

    def status(self) -> Status:
        """Return the summary of the frontier.

        Raises:
            Stop: there is no such frontier.
        """
        return self._found(self.inspector.status(self.config.seeds_keys))

    def state(self) -> State:
        """Return the state of the frontier.

        Raises:
            Stop: there is no such frontier.
        """
        return self._found(self.inspector.state())

    def open_state(self, why: str) -> State:
        """Return the state of the frontier for a verb that acts on the running crawl only.

        Args:
            why: what the verb can't do once the crawl has ended.

        Raises:
            Stop: there is no such frontier, or its crawl has ended.
        """
        state = self.state()
        if state.has_ended:
            raise Stop(f"{self.ending_of(state)}; {why}")
        return state

    def ending_of(self, state: State) -> str:
        """Return when a crawl that is over has ended."""
        return f"the crawl of frontier {self.name!r} ended at {moment(state.ended_ms)}"

    def ending_notes(self) -> list[str]:
        """Return a line about the end of the crawl, if it is over, for a verb that shows what is left of it."""
        state = self.state()
        return [self.ending_of(state)] if state.has_ended else []

    def nothing(self, text: str) -> str:
        """Return a text about what wasn't found, with the end of the crawl if that is the reason."""
        state = self.state()
        return f"{text}; {self.ending_of(state)}" if state.has_ended else text

    def _found(self, found: T | None) -> T:
        if found is None:
            raise self._no_frontier()
        return found

    def _no_frontier(self) -> Stop:
        why = "no crawl has used this name, or it was reset"
        seen, age_s = self.inspector.seen_of_others(), self.inspector.import_age_s()
        if age_s is not None:
            why = (
                f"an import into it has been silent for {age_s:.0f} s; if it was interrupted, repeat it, or delete its"
                f" part ({frontier_command('reset --all', self.name)})"
            )
        elif seen is not None:
            why = (
                f"this name only stores {counted(seen, 'fingerprint')} of others (PRIOQUEUE_SEEN_NAME), which"
                f" `{frontier_command('reset --seen', self.name)}` deletes"
            )
        return Stop(
            f"there is no frontier {self.name!r} at {self.link.address}: {why}{others_of(self.link, self.name)}"
        )

    def crawler(self) -> Crawler:
        """Return a crawler of the spider that has a fingerprinter but never crawls.

        Raises:
            SettingError: the user's class can't be used without a crawl.
        """
        name, crawler = "REQUEST_FINGERPRINTER_CLASS", Crawler(self.spider_class or Spider, self.settings)
        try:
            own = build_from_crawler(load_object(self.settings[name]), crawler)
            crawler.request_fingerprinter = own if works_alone(own) else equip(crawler, own, self._arguments)
        except Exception as error:  # the class may be the user's
            raise SettingError(name, self.settings[name], f"can't be used here: {error!r}") from error
        return crawler

    def close(self) -> None:
        if "link" in self.__dict__:
            self.link.close()


def find_context(
    settings: Settings,
    output: Output,
    *,
    name: str | None,
    spider: str | None,
    arguments: Mapping[str, str],
    needs_name: bool = True,
) -> Context:
    """Find the frontier that a command is about.

    Args:
        settings: of the project and the command line; the spider's own are added.
        name: of the frontier; None to use `PRIOQUEUE_NAME`.
        spider: name of a spider of the project; None for its only one.
        arguments: spider arguments, which `PRIOQUEUE_NAME` may contain.
        needs_name: the command is about one frontier; otherwise any name does.

    Raises:
        SettingError: a setting can't be used, or the spider is ambiguous.
    """
    if name:
        settings.set(NAME_SETTING, name.replace("%", "%%"), priority="cmdline")
    spider_class = _spider_class(settings, spider)
    if spider_class is not None:
        spider_class.update_settings(settings)
    _apply_addons(settings, spider_class)
    if not needs_name:
        # The names aren't used, so each argument in them is replaced by its own name.
        return Context(Config.from_settings(settings, "any", str), settings, output, spider_class)
    is_any = "%(spider)s" not in str(settings.get(NAME_SETTING, "%(spider)s"))
    if spider_class is None and not is_any:
        raise SettingError(NAME_SETTING, settings.get(NAME_SETTING, "%(spider)s"), _which_spider(settings))
    config = Config.from_settings(
        settings,
        spider_class.name if spider_class else "",
        lambda part: arguments.get(part, getattr(spider_class, part, None)),
    )
    return Context(config, settings, output, spider_class, arguments)


def _apply_addons(settings: Settings, spider_class: type[Spider] | None) -> None:
    """Change the settings as in a crawl: add-ons may set the fingerprinter, the filter and settings of this package."""
    if not settings.getdict("ADDONS"):
        return
    try:
        Crawler(spider_class or Spider, settings).addons.load_settings(settings)
    except Exception as error:  # they may be the user's
        raise SettingError("ADDONS", settings["ADDONS"], f"can't be used: {error!r}") from error


def _spider_class(settings: Settings, spider: str | None) -> type[Spider] | None:
    names = _spider_names(settings)
    if spider is None and len(names) != 1:
        return None
    wanted = spider or names[0]
    if wanted not in names:
        raise SettingError("--spider", wanted, f"no such spider; {_meant(names, wanted)}")
    found: type[Spider] = _spider_loader(settings).load(wanted)
    return found


def _spider_names(settings: Settings) -> Sequence[str]:
    try:
        return sorted(_spider_loader(settings).list())
    except Exception as error:  # the project's modules may raise anything when they are imported
        raise SettingError(
            "SPIDER_MODULES", settings.getlist("SPIDER_MODULES"), f"can't be loaded: {error!r}"
        ) from error


def _spider_loader(settings: Settings) -> Any:
    return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())


def _which_spider(settings: Settings) -> str:
    known = _known(_spider_names(settings))
    return f"which frontier? Give --name NAME or --spider SPIDER; {known}. 'scrapy frontier list' lists the frontiers"


def _meant(names: Sequence[str], wanted: str) -> str:
    question, known = did_you_mean(wanted, names), _known(names)
    return f"{question} {known[0].upper()}{known[1:]}" if question else known


def _known(names: Sequence[str]) -> str:
    """Return a text with the first spiders, in the order of the alphabet."""
    return f"spiders here: {nearest('', names)}" if names else "there are no spiders here"
