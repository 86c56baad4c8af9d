"""What `scrapy frontier check` says of the code of a spider: each finding, and what looks like one and isn't."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent, indent
from typing import Any

import pytest

from scrapy_prioqueue.checking.check import code_findings
from scrapy_prioqueue.checking.code import Module, SpiderCode, Surroundings, code_of
from scrapy_prioqueue.checking.findings import PATTERNS, CodeFinding
from tests.docs.markdown import REPOSITORY, anchors
from tests.docs.test_code_blocks import FENCE

HEAD = "import scrapy\nfrom functools import partial\n"
AROUND = Surroundings(
    "shop",
    pattern="%(spider)s",
    others=(),
    has_cookies=True,
    are_jars_kept=True,
    is_held=False,
    fetches_each_start=False,
    limits=(),
    calls_start_requests=True,
)


def findings(text: str, **around: Any) -> Sequence[CodeFinding]:
    """Check the source of a module whose last class is the spider; earlier ones are its bases."""
    module = Module("shop.py", ast.parse(HEAD + dedent(text)))
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    return code_findings(SpiderCode([(node, module) for node in reversed(classes)]), replace(AROUND, **around))


def topics(body: str, **around: Any) -> list[tuple[str, str]]:
    """Check a spider whose class has this body."""
    text = "class Shop(scrapy.Spider):\n" + indent(dedent(body), "    ")
    return [(found.severity, found.topic) for found in findings(text, **around)]


PARSE = "def parse(self, response):\n"


@pytest.mark.parametrize(
    ("value", "topic"),
    [
        ("callback=lambda response: None", "is a lambda"),
        ("callback=partial(self.parse, 1)", "is a functools.partial"),
        ("errback=self.helper.failed", "is a method of another object, self.helper.failed"),
        ("meta={'node': response.css('a')}", "meta['node'] in parse is a selector"),
        ("meta={'node': response.css('a')[0]}", "is a selector"),
        ("meta={'page': response}", "is a response"),
        ("cb_kwargs=dict(key=(x for x in 'ab'))", "cb_kwargs['key'] in parse is a generator"),
        ("meta={'spider': self}", "is the spider"),
        ("meta={'nested': [{'row': response.xpath('//a')}]}", "is a selector"),
        ("meta={'out': open('x')}", "is an open handle"),
        ("meta={'loader': ItemLoader()}", "is an item loader"),
        ("meta={'soup': BeautifulSoup('').find('a')}", "is a node of BeautifulSoup"),
        ("meta={'next': scrapy.Request('data:,')}", "is a request"),
    ],
)
def test_what_keeps_a_request_in_its_worker_is_found(value: str, topic: str) -> None:
    [found] = findings(f"class Shop(scrapy.Spider):\n    {PARSE}        yield scrapy.Request('data:,', {value})")

    assert (found.severity, found.topic, found.line) == ("wrong", "stays local", 5)
    assert topic in found.text
    assert found.section == "callbacks-and-values"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("def inner(r): pass\nyield response.follow('/', inner)", id="function-inside"),
        pytest.param("done = lambda r: None\nyield response.follow('/', callback=done)", id="lambda-by-name"),
        pytest.param(
            "for row in response.css('a'):\n    yield response.follow('/', meta={'r': row})", id="row-of-a-loop"
        ),
        pytest.param("meta = {'r': response.css('a')}\nyield response.follow('/', meta=meta)", id="dict-by-name"),
        pytest.param("meta: dict = {'r': response}\nyield response.follow('/', meta=meta)", id="annotated-name"),
        pytest.param("request = response.follow('/')\nrequest.meta['r'] = response\nyield request", id="put-in-later"),
    ],
)
def test_what_stays_local_is_found_through_names(body: str) -> None:
    assert topics(PARSE + indent(body, "    ")) == [("wrong", "stays local")]


@pytest.mark.parametrize(
    "body",
    [
        "yield response.follow('/', self.parse, meta={'a': response.css('a').get(), 'b': response.url})",
        "yield response.follow(response.css('a')[0], cb_kwargs={'rows': response.css('a').getall()})",
        "yield response.follow('/', callback=getattr(self, 'parse'))",
        "row = response.css('a')\nrow = row.get()\nyield response.follow('/', meta={'row': row})",
        "for text in response.css('a::text').getall():\n    yield response.follow('/', meta={'text': text})",
        "response.meta['x'] = response\nyield {'x': 1}",
        "link = response.css('a')[0].attrib['href']\nyield response.follow(link, meta={'link': link})",
        "loader = ItemLoader(response=response)\nyield response.follow('/', meta={'item': loader.load_item()})",
        "soup = BeautifulSoup(response.text)\nyield response.follow('/', meta={'t': soup.find('a').text})",
    ],
)
def test_what_can_be_stored_is_not_reported(body: str) -> None:
    assert topics(PARSE + indent(body, "    ")) == []


STATE = {
    "page counter": """
        page = 1
        def parse(self, response):
            self.page += 1
            yield scrapy.Request(f"https://shop.example/?page={self.page}")
    """,
    "page counter, through a local variable": """
        page = 1
        def parse(self, response):
            self.page = self.page + 1
            url = "https://shop.example/" + str(self.page)
            yield scrapy.Request(url)
    """,
    "page counter, in a dictionary": """
        def __init__(self):
            self.params = {"page": 1}
        def parse(self, response):
            self.params["page"] += 1
            yield scrapy.FormRequest("https://shop.example/", formdata=self.params)
    """,
    "counter": """
        count = 0
        def parse(self, response):
            self.count += 1
            yield {"number": self.count}
    """,
    "counter, of itertools": """
        def __init__(self):
            self.numbers = itertools.count()
        def parse(self, response):
            yield {"number": next(self.numbers)}
    """,
    "counter, that must be met": """
        finished = 0
        def parse(self, response):
            self.finished += 1
            if self.finished == 3:
                yield {"is_complete": True}
    """,
    "limit, of a length": """
        ids = set()
        def parse(self, response):
            self.ids.add(response.url)
            if len(self.ids) < 100:
                yield response.follow("/next")
    """,
    "limit": """
        count = 0
        def parse(self, response):
            self.count += 1
            if self.count > 100:
                raise CloseSpider("enough")
    """,
    "work list": """
        todo = []
        def parse(self, response):
            self.todo += response.css("a::attr(href)").getall()
            yield scrapy.Request(self.todo.pop())
    """,
    "work list, filled before": """
        def __init__(self):
            self.urls = iter(["https://shop.example/"])
        def parse(self, response):
            yield scrapy.Request(next(self.urls))
    """,
    "work list, of start": """
        todo = {1}
        def start_requests(self):
            while self.todo:
                yield scrapy.Request(f"https://shop.example/{self.todo.pop()}")
        def parse(self, response):
            self.todo.add(int(response.text))
    """,
    "shared state, of halves": """
        halves = {}
        def parse(self, response):
            if response.url in self.halves:
                yield {**self.halves.pop(response.url), "other": response.text}
            else:
                self.halves[response.url] = {"one": response.text}
    """,
    "seen here, in a set of from_crawler": """
        @classmethod
        def from_crawler(cls, crawler):
            spider = super().from_crawler(crawler)
            spider.ids = set()
            return spider
        def parse(self, response):
            if response.url not in self.ids:
                self.ids.add(response.url)
                yield {"url": response.url}
    """,
    "second phase": """
        @classmethod
        def from_crawler(cls, crawler):
            spider = super().from_crawler(crawler)
            crawler.signals.connect(spider.go_on, signal=signals.spider_idle)
            return spider
        later = []
        def parse(self, response):
            self.later.append(response.url)
        def go_on(self):
            for url in self.later:
                self.crawler.engine.crawl(scrapy.Request(url))
    """,
    "collected": """
        def __init__(self):
            self.rows = []
        def parse(self, response):
            self.rows.append(response.css("a").get())
        def closed(self, reason):
            save(self.rows)
    """,
    "seen here": """
        ids = set()
        def parse(self, response):
            if response.url not in self.ids:
                self.ids.add(response.url)
                yield {"url": response.url}
    """,
    "flag": """
        stopped = False
        def parse(self, response):
            if not self.stopped:
                yield response.follow("/", self.parse_page)
        def parse_page(self, response):
            self.stopped = True
    """,
    "shared state": """
        def parse(self, response):
            self.shop = response.css("h1").get()
            yield response.follow("/", self.parse_page)
        def parse_page(self, response):
            yield {"shop": self.shop}
    """,
    "shared state, by key": """
        prices = {}
        def parse(self, response):
            self.prices[response.url] = response.css("b").get()
            yield response.follow("/", self.parse_page)
        def parse_page(self, response):
            yield {"price": self.prices[response.url]}
    """,
    "shared state, compared by key": """
        kinds = {}
        def parse(self, response):
            self.kinds[response.url] = int(response.css("b").get())
            yield response.follow("/", self.parse_page)
        def parse_page(self, response):
            if self.kinds[response.url] == 2:
                yield {"kind": "hotel"}
    """,
    "shared state, of the class": """
        def parse(self, response):
            Shop.shop = response.css("h1").get()
            yield response.follow("/", self.parse_page)
        def parse_page(self, response):
            yield {"shop": self.shop}
    """,
    "shared state, in a helper": """
        def parse(self, response):
            yield response.follow("/", self.parse_page)
            self.keep(response.url)
        def keep(self, url):
            self.url = url
        def parse_page(self, response):
            yield {"url": self.url}
    """,
    "shared state, page to page": """
        last = None
        def parse(self, response):
            yield {"before": self.last}
            self.last = response.url
    """,
    "login": """
        def parse(self, response):
            self.token = response.json()["token"]
            yield scrapy.Request("https://shop.example/list", self.parse_list)
        def parse_list(self, response):
            yield scrapy.Request("https://shop.example/1", headers={"Authorization": self.token})
    """,
    "total": """
        count = 0
        def parse(self, response):
            self.count += 1
        def closed(self, reason):
            self.logger.info("%d pages", self.count)
    """,
}

SEVERITIES = {"limit": "warning", "seen here": "warning", "flag": "warning", "total": "note"}


@pytest.mark.parametrize("name", STATE)
def test_state_that_callbacks_share_is_found(name: str) -> None:
    topic = name.partition(",")[0]

    assert topics(STATE[name]) == [(SEVERITIES.get(topic, "wrong"), topic)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            """
            def parse(self, response):
                self.item = {}
                self.item["url"] = response.url
                yield self.item
            """,
            id="a-local-variable",
        ),
        pytest.param(
            """
            def parse(self, response):
                self.response = response
                yield from self.rows()
            def rows(self):
                yield {"url": self.response.url}
            """,
            id="set-before-each-call-of-a-helper",
        ),
        pytest.param(
            """
            def parse(self, response):
                self.read(response)
                yield {"url": self.url}
            def read(self, response):
                self.url = response.url
            """,
            id="set-by-a-helper-before",
        ),
        pytest.param(
            """
            def __init__(self, **kwargs):
                self.tags = ["a"]
            async def start(self):
                self.headers = {"a": "b"}
                yield scrapy.Request("data:,")
            def parse(self, response):
                yield scrapy.Request("data:,", headers=self.headers, meta={"tags": self.tags})
            """,
            id="set-up-in-each-worker",
        ),
        pytest.param(
            """
            cache = {}
            def parse(self, response):
                yield {"rate": self.rate("EUR")}
            def rate(self, currency):
                if currency not in self.cache:
                    self.cache[currency] = look_up(currency)
                return self.cache[currency]
            """,
            id="a-cache",
        ),
        pytest.param(
            """
            client = None
            def parse(self, response):
                if self.client is None:
                    self.client = Client()
                self.client.send(response.text)
            """,
            id="made-where-it-is-missing",
        ),
        pytest.param(
            """
            pages = None
            def parse(self, response):
                if not self.pages:
                    self.pages = int(response.css("b::text").get())
                for page in range(self.pages):
                    yield response.follow(f"?page={page}")
            """,
            id="read-from-the-first-page",
        ),
        pytest.param(
            """
            headers = {}
            def parse(self, response):
                self.headers["Referer"] = response.url
                yield scrapy.Request("data:,", headers=self.headers)
            """,
            id="a-key-set-before-it-is-used",
        ),
        pytest.param(
            """
            count = 0
            def parse(self, response):
                self.count += 1
                proxy = PROXIES[self.count % len(PROXIES)]
                if self.count % 20 == 0:
                    self.logger.info("%d pages", self.count)
            """,
            id="every-nth-page",
        ),
        pytest.param(
            """
            def parse(self, response):
                self.crawler.stats.inc_value("pages")
                self.db.insert(response.url)
                self.state_of_things = 1
            """,
            id="stats-calls-and-what-nobody-reads",
        ),
        pytest.param(
            """
            def unused(self, response):
                self.page += 1
                yield scrapy.Request(str(self.page), callback=self.also_unused)
            def also_unused(self, response):
                yield {"page": self.page}
            """,
            id="methods-that-never-run",
        ),
        pytest.param(
            """
            brands = {"a": 1}
            active = browsers = 0
            def parse(self, response):
                if self.active != self.browsers:
                    self.active = self.browsers
                yield {"brand": next(brand for brand in self.brands if brand in response.text)}
            """,
            id="a-search-and-a-correction",
        ),
        pytest.param(
            """
            todo = []
            def parse(self, response):
                while self.todo:
                    yield self.todo.pop()
            """,
            id="a-list-that-nobody-fills",
        ),
    ],
)
def test_state_that_is_harmless_is_not_reported(body: str) -> None:
    assert topics(body) == []


def test_state_of_a_base_and_of_the_module_is_found() -> None:
    found = findings("""
        SEEN = set()

        class Base(scrapy.Spider):
            def parse(self, response):
                self.shop = response.url
                yield response.follow("/", self.parse_page)

        class Shop(Base):
            def parse_page(self, response):
                if response.url not in SEEN:
                    SEEN.add(response.url)
                    yield {"shop": self.shop}
    """)

    assert [(one.topic, one.line) for one in found] == [("shared state", 8), ("seen here", 14)]
    assert found[0].text.startswith("self.shop is written in parse and read in parse_page (line 15): ")


LOGIN = """
    async def start(self):
        yield scrapy.FormRequest("https://shop.example/login", formdata={"user": "me", "password": "x"})
"""
JAR = """
    async def start(self):
        yield scrapy.Request("https://shop.example/", meta={"cookiejar": 1})
"""


def test_logins_and_cookie_jars_are_found_where_cookies_matter() -> None:
    assert topics(LOGIN) == [("wrong", "login")]
    assert topics(LOGIN, has_cookies=False) == topics(LOGIN, is_held=True) == []
    assert topics(JAR) == [("note", "cookie jars")]
    assert topics(JAR, are_jars_kept=False) == topics(JAR, has_cookies=False) == []
    assert topics(STATE["login"], is_held=True) == []


def test_a_form_without_a_password_is_no_login() -> None:
    search = "yield scrapy.FormRequest.from_response(response, formdata={'query': 'a', 'passage': 'b'})"

    assert topics(PARSE + f"    {search}") == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("def __init__(self):\n    self.out = open('out.csv', 'w')", ("warning", "file"), id="kept-open"),
        pytest.param(PARSE + "    with open('out.csv', 'a') as out: pass", ("warning", "file"), id="appended-to"),
        pytest.param(PARSE + "    open('page.html', 'w')", None, id="the-last-page-with-one-worker-too"),
        pytest.param(PARSE + "    open(response.url[-9:], 'a')", None, id="a-file-for-each-page"),
        pytest.param("def __init__(self):\n    self.urls = open('urls.txt').readlines()", None, id="only-read"),
        pytest.param(
            "def __init__(self):\n    self.db = sqlite3.connect('x.db')", ("warning", "database"), id="sqlite"
        ),
        pytest.param("def __init__(self):\n    self.db = psycopg2.connect('x')", None, id="a-server"),
        pytest.param(
            "def __init__(self):\n    self.driver = webdriver.Chrome()\n"
            + PARSE
            + "    self.driver.get(response.url)\n    yield response.follow('/', self.parse_more)\n"
            + "def parse_more(self, response):\n    self.driver.find_element('a')",
            ("wrong", "browser"),
            id="goes-on-in-the-browser",
        ),
        pytest.param(
            "def __init__(self):\n    self.driver = webdriver.Chrome()\n" + PARSE + "    self.driver.get(response.url)",
            None,
            id="loads-its-own-page",
        ),
    ],
)
def test_handles(body: str, expected: tuple[str, str] | None) -> None:
    assert topics(body) == [expected] * (expected is not None)


SHARED = """
    def parse(self, response):
        group = {{"left": 3}}
        for link in response.css("a"):
            yield response.follow(link, self.parse_part, {holder}={{"group": group}})
    def parse_part(self, response, group=None):
        {change}
"""


@pytest.mark.parametrize(
    ("holder", "change", "is_found"),
    [
        ("cb_kwargs", "group['left'] -= 1", True),
        ("meta", "group = response.meta['group']; group['parts'].append(1)", True),
        ("meta", "group = response.meta['group']; yield {**group, 'url': response.url}", False),
        ("cb_kwargs", "group['url'] = response.url; yield group", False),
    ],
)
def test_an_object_that_requests_share_is_found_if_callbacks_change_it_together(
    holder: str, change: str, is_found: bool
) -> None:
    assert topics(SHARED.format(holder=holder, change=change)) == [("wrong", "shared object")] * is_found


ENDLESS = """
    async def start(self):
        while True:
            yield scrapy.Request(next_message(), dont_filter=True)
"""


def test_a_start_that_takes_work_for_ever_is_found() -> None:
    assert topics(ENDLESS) == [("warning", "endless start")]
    assert topics(ENDLESS, fetches_each_start=True) == []
    assert topics(ENDLESS + "            if done(): break\n") == []


def test_what_would_share_the_frontier_is_found() -> None:
    other = ("books", "%(spider)s", "shop.Books")

    assert topics("pass", others=[other]) == []
    assert topics("pass", others=[("shop", "%(spider)s", "shop.Other")]) == [("wrong", "name")]
    assert topics("pass", pattern="all", others=[("books", "all", "shop.Books")]) == [("wrong", "name")]
    assert topics("pass", pattern="all", others=[other]) == []


def test_arguments_that_the_name_lacks_are_noted() -> None:
    body = "def __init__(self, country=None, *args, **kwargs):\n    self.shop = kwargs.get('shop')"

    [found] = findings("class Shop(scrapy.Spider):\n" + indent(body, "    "))
    assert (found.severity, found.text) == ("note", "runs with different values of country, shop share one frontier")
    assert topics(body, pattern="%(spider)s-%(country)s-%(shop)s") == []


def test_limits_of_each_worker_are_found() -> None:
    assert topics("pass", limits=["CLOSESPIDER_ITEMCOUNT"]) == [("warning", "limit")]


def test_code_of_a_loaded_class_leaves_out_what_is_installed() -> None:
    from shop.spiders.shop import ShopSpider

    code = code_of(ShopSpider)

    assert [node.name for node, _ in code.classes] == ["ShopSpider"]
    assert code.place[0].endswith("shop.py")


def test_each_pattern_has_a_section() -> None:
    assert set(PATTERNS) <= anchors(REPOSITORY / "docs" / "ready.md")


PAGE = (REPOSITORY / "docs" / "ready.md").read_text("utf-8")


@pytest.mark.parametrize("block", [text for _, _, text in FENCE.findall(PAGE) if "(Spider)" in text], ids=str.split)
def test_patterns_are_ready(block: str) -> None:
    """The spiders on the page have no finding themselves."""
    module = Module("ready.md", ast.parse(block))
    found = code_findings(SpiderCode([(node, module) for node in module.tree.body if isinstance(node, ast.ClassDef)]),
                          replace(AROUND, is_held="HOLD_UNTIL_START" in block))  # fmt: skip

    assert found == []


def test_start_requests_is_wrong_only_if_nothing_calls_it() -> None:
    body = "def start_requests(self):\n    yield scrapy.Request('https://shop.example/')\n"

    assert topics(body) == []
    assert topics(body, calls_start_requests=False) == [("wrong", "start")]
    assert topics("start_urls = ['https://shop.example/']", calls_start_requests=False) == []
