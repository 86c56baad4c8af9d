"""What is checked: a spider's class and its bases in the user's project, as syntax trees, and its settings."""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

Place = tuple[str, int]
"""File and line."""

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


class NoSource(Exception):
    """The source of a spider can't be read."""


class Module:
    """A module of the project.

    Args:
        file: shown in findings.
    """

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file = file
        self.tree = tree

    @cached_property
    def functions(self) -> Collection[str]:
        return {node.name for node in self.tree.body if isinstance(node, FunctionNode)}

    @cached_property
    def values(self) -> Mapping[str, ast.expr]:
        """Its global variables, by name."""
        return dict(assignments(self.tree.body))


@dataclass(frozen=True, eq=False)
class Method:
    """A method of the spider's class or a base; `own` is the name of its first argument, empty for a static method."""

    name: str
    node: FunctionNode
    module: Module
    own: str

    def place(self, node: ast.stmt | ast.expr) -> Place:
        """Return the place of a part of it."""
        return self.module.file, node.lineno

    def is_own(self, node: ast.AST) -> bool:
        """Return whether an expression is the spider."""
        return isinstance(node, ast.Name) and (node.id == self.own or node.id in self.made)

    def attribute(self, node: ast.AST) -> str:
        """Return the name of an attribute of the spider: `x` of `self.x`; empty for anything else."""
        return node.attr if isinstance(node, ast.Attribute) and self.is_own(node.value) else ""

    @cached_property
    def requests(self) -> Sequence[ast.Call]:
        """The calls that make requests."""
        return list(filter(is_request, ast.walk(self.node)))

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.node) for child in ast.iter_child_nodes(node)}

    @cached_property
    def made(self) -> Collection[str]:
        """Names of the new spider in `from_crawler()`."""
        return {
            name
            for name, value in assignments(self.node.body if self.name == "from_crawler" else ())
            if isinstance(value, ast.Call) and (name_of(value.func) in {self.name, self.own})
        }

    @cached_property
    def loads(self) -> Mapping[str, Sequence[ast.Name]]:
        """The places where each name is read."""
        found: dict[str, list[ast.Name]] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def nested(self) -> Collection[str]:
        """Names of the functions defined inside."""
        return {node.name for node in ast.walk(self.node) if isinstance(node, FunctionNode) and node is not self.node}

    @cached_property
    def parameters(self) -> Sequence[ast.arg]:
        """Parameters that can be given by position, without the spider."""
        found = [*self.node.args.posonlyargs, *self.node.args.args]
        return found[1:] if self.own else found

    @cached_property
    def locals(self) -> Collection[str]:
        """Names that are bound here and are not declared global."""
        arguments = self.node.args
        extra = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        found = {arg.arg for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra]}
        shared: set[str] = set()
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Global):
                shared.update(node.names)
        return found - shared

    @property
    def is_async_or_generator(self) -> bool:
        """Whether a call only makes an object, and the body runs later."""
        return isinstance(self.node, ast.AsyncFunctionDef) or any(
            isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(self.node)
        )


class SpiderCode:
    """The class of a spider and its bases in the project, the most derived first, each with its module."""

    def __init__(self, classes: Sequence[tuple[ast.ClassDef, Module]]) -> None:
        self.classes = classes
        self.names = {node.name for node, _ in classes}
        self.methods: dict[str, list[Method]] = {}
        """Definitions by name; more than one where each calls that of its base."""
        for node, module in classes:
            for method in _methods(node, module):
                known = self.methods.setdefault(method.name, [])
                if not known or _calls_base(known[-1]):
                    known.append(method)

    @property
    def definitions(self) -> Iterator[Method]:
        """All methods that may run."""
        return (method for found in self.methods.values() for method in found)

    @cached_property
    def class_values(self) -> Mapping[str, ast.expr]:
        """Values that the class bodies assign, by name."""
        return {name: value for node, _ in reversed(self.classes) for name, value in assignments(node.body)}

    @property
    def place(self) -> Place:
        """The place of the spider's class."""
        node, module = self.classes[0]
        return module.file, node.lineno


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings and the project of a spider, as far as they matter here.

    Args:
        name: of the spider.
        pattern: `PRIOQUEUE_NAME`.
        others: the other spiders of the project: name, `PRIOQUEUE_NAME` and class.
        has_cookies: `COOKIES_ENABLED`.
        are_jars_kept: `PRIOQUEUE_COOKIEJARS` is `"local"`: requests with a cookie jar stay in their worker.
        is_held: `PRIOQUEUE_HOLD_UNTIL_START`: each worker logs in by itself.
        fetches_each_start: `PRIOQUEUE_START` is `"each"`.
        limits: settings of `CLOSESPIDER_*` that are set.
        calls_start_requests: Scrapy, or the spider's own `start()`, calls `start_requests()`.
    """

    name: str
    pattern: str
    others: Iterable[tuple[str, str, str]]
    has_cookies: bool
    are_jars_kept: bool
    is_held: bool
    fetches_each_start: bool
    limits: Sequence[str]
    calls_start_requests: bool


def code_of(cls: type) -> SpiderCode:
    """Read the source of a loaded spider class.

    Raises:
        NoSource: it is not in a file that can be read.
    """
    modules: dict[str, Module] = {}
    classes = [found for base in cls.__mro__ if (found := _class_of(base, modules)) is not None]
    if not classes or classes[0][0].name != cls.__name__:
        raise NoSource(f"the source of {cls.__module__}.{cls.__qualname__} can't be read")
    return SpiderCode(classes)


def _class_of(cls: type, modules: dict[str, Module]) -> tuple[ast.ClassDef, Module] | None:
    """Return the definition of a class of the project; None for one that was installed."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not file.endswith(".py") or _is_installed(Path(file).resolve()):
        return None
    if file not in modules:
        try:
            modules[file] = Module(shown_path(file), ast.parse(Path(file).read_bytes()))
        except (OSError, SyntaxError, ValueError):
            return None
    # Of several definitions of one name the last counts, unless its line is known.
    found = [node for node in ast.walk(modules[file].tree) if isinstance(node, ast.ClassDef)]
    named = [node for node in found if node.name == cls.__name__]
    if not named:
        return None
    try:
        line = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        line = 0
    return next((node for node in named if _first_line(node) == line), named[-1]), modules[file]


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _is_installed(path: Path) -> bool:
    own = Path(__file__).resolve().parents[1]
    return (
        not set(_INSTALLED).isdisjoint(path.parts)
        or path.is_relative_to(own)
        or any(path.is_relative_to(folder) for folder in _STANDARD)
    )


def shown_path(file: str) -> str:
    """Return a path as users see it: relative if it is below the working directory."""
    path, here = Path(file).resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and values of the assignments among these statements."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


def _methods(node: ast.ClassDef, module: Module) -> Iterator[Method]:
    for item in node.body:
        if isinstance(item, FunctionNode):
            arguments = [*item.args.posonlyargs, *item.args.args]
            is_static = any(isinstance(name, ast.Name) and name.id == "staticmethod" for name in item.decorator_list)
            yield Method(item.name, item, module, arguments[0].arg if arguments and not is_static else "")


def _calls_base(method: Method) -> bool:
    """Return whether a method calls the one that it overrides."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == method.name
        and isinstance(node.value, ast.Call)
        and name_of(node.value.func) == "super"
        for node in ast.walk(method.node)
    )


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name: `open` of `io.open`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def text_in(node: ast.AST | None) -> str:
    """Return a text that is written out; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument that is given by its position or its name."""
    if len(call.args) > position:
        return call.args[position]
    return next((word.value for word in call.keywords if word.arg == name), None)


def dotted(node: ast.AST) -> str:
    """Return a whole dotted name, such as `self.file.write`; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def is_response(arg: ast.arg) -> bool:
    """Return whether a parameter is a response, by its name or annotation."""
    if arg.arg in {"response", "resp", "res"}:
        return True
    return arg.annotation is not None and name_of(arg.annotation).endswith("Response")


def is_request(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a call makes requests, by its name: `Request()`, `FormRequest.from_response()`, `follow()`."""
    if not isinstance(node, ast.Call):
        return False
    name = name_of(node.func)
    return name.endswith("Request") or name in {"follow", "follow_all", "from_response", "from_curl"}
