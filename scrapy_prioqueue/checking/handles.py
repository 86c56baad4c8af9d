"""Files, databases and browsers that a spider opens: each worker has its own, or several write to the same one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from scrapy_prioqueue.checking.code import Method, SpiderCode, argument, dotted, name_of, text_in
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.roles import Roles

_SECTION = "files-databases-and-browsers"
_BROWSERS = {"Chrome", "Firefox", "Edge", "Safari", "Remote", "PhantomJS", "WebKitGTK"}
_DATABASES = {
    *("sqlite3.connect", "pymysql.connect", "MySQLdb.connect", "mysql.connector.connect", "psycopg2.connect"),
    *("psycopg.connect", "pymongo.MongoClient", "MongoClient", "cx_Oracle.connect", "redis.Redis", "redis.StrictRedis"),
}


def handle_of(value: ast.AST) -> str:
    """Return what a call opens: a file, a database, a browser; empty for anything else."""
    if not isinstance(value, ast.Call):
        return ""
    name, whole = name_of(value.func), dotted(value.func)
    if whole in {"open", "io.open", "codecs.open"}:
        return "file"
    if whole in _DATABASES:
        return "database"
    return "browser" if name in _BROWSERS and whole in {name, f"webdriver.{name}"} else ""


def handles_of(code: SpiderCode) -> Mapping[str, str]:
    """Return the attributes of the spider that hold a handle, and its kind."""
    result = {}
    for method in code.definitions:
        for node in ast.walk(method.node):
            if isinstance(node, ast.Assign) and (kind := handle_of(node.value)):
                for target in node.targets:
                    if name := method.attribute(target):
                        result[name] = kind
    return result


def handle_findings(code: SpiderCode, roles: Roles) -> Iterator[CodeFinding]:
    """Find files that several workers would write, and browsers whose state one callback leaves for another."""
    for method in roles.methods("setup", "page"):
        # A file that each page writes anew keeps only the last page, with one worker, too.
        modes = "a" if roles.of(method) == {"page"} else "wax"
        for node in ast.walk(method.node):
            if not isinstance(node, ast.Call):
                continue
            file = _written(node, code, method, modes)
            if file:
                text = (
                    f"{method.name} writes {file}: workers on one machine overwrite or mix its content, and each"
                    " machine has a file of its own"
                )
                yield found("warning", "file", text, _SECTION, method.place(node))
            elif dotted(node.func) == "sqlite3.connect":
                text = f"{method.name} opens a SQLite file: it is on one machine only, and one worker at a time writes"
                yield found("warning", "database", text, _SECTION, method.place(node))
    yield from _browsers(code, roles)


def _written(node: ast.Call, code: SpiderCode, method: Method, modes_wanted: str) -> str:
    """Return the name of a file that is opened to write, if it is the same for all pages."""
    if handle_of(node) != "file" or not node.args:
        return ""
    if set(modes_wanted).isdisjoint(text_in(argument(node, 1, "mode"))):
        return ""
    path = node.args[0]
    if isinstance(path, ast.Name) and path.id not in method.locals:
        path = method.module.values.get(path.id, path)
    elif name := method.attribute(path):
        path = code.class_values.get(name, path)
    return repr(text) if (text := text_in(path)) else ""


def _browsers(code: SpiderCode, roles: Roles) -> Iterator[CodeFinding]:
    """Find browsers on the spider that a callback uses before it loads a page of its own."""
    browsers = [name for name, kind in handles_of(code).items() if kind == "browser"]
    for name in browsers:
        for method in code.definitions:
            if method.name not in roles.callbacks:
                continue
            uses = [
                node
                for node in ast.walk(method.node)
                if isinstance(node, ast.Attribute) and method.attribute(node.value) == name
            ]
            uses.sort(key=lambda node: (node.lineno, node.col_offset))
            if uses and uses[0].attr not in {"get", "quit", "close", "implicitly_wait", "set_page_load_timeout"}:
                text = (
                    f"{method.name} uses the page that is open in self.{name}: each worker has its own browser, with"
                    " another page"
                )
                yield found("wrong", "browser", text, _SECTION, method.place(uses[0]))
                break
