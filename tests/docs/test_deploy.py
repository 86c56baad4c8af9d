"""The files of deploy/ fit each other and the package; `tests/deploy` checks them against the schemas."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest
import yaml
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.settings import Settings

from scrapy_prioqueue.commands.frontier import FrontierCommand
from scrapy_prioqueue.commands.verbs.exporter import PORT
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.monitoring.adviser import SCALE_PATH
from scrapy_prioqueue.monitoring.scaling import Advice
from scrapy_prioqueue.settings import SETTINGS
from tests.docs.markdown import REPOSITORY
from tests.support.deployment import COMPOSE, KUBERNETES, commands, documents, objects, pods

PAGE = REPOSITORY / "docs" / "deployment.md"

TRIGGERS = {
    "metrics-api": ({"url", "valueLocation", "targetValue"}, {"activationTargetValue", "format"}),
    "redis": ({"address", "listName", "listLength"}, {"activationListLength", "databaseIndex", "enableTLS"}),
}
"""Required and further fields that KEDA's documentation describes."""


@pytest.mark.parametrize("arguments", list(commands()), ids=lambda arguments: " ".join(arguments[:3]))
def test_commands_are_those_of_the_package(arguments: list[str]) -> None:
    settings = dict(
        argument.partition("=")[::2]
        for flag, argument in zip(arguments, arguments[1:], strict=False)
        if flag in ("-s", "--set")
    )
    assert set(settings) <= set(SETTINGS)
    assert "redis://redis:6379/0" in [settings.get("PRIOQUEUE_REDIS_URL"), arguments[-1]]
    if arguments[0] == "crawl":
        assert {"PRIOQUEUE_CRAWL_ID", "PRIOQUEUE_FALLBACK"} <= set(settings)
        return
    command = FrontierCommand()
    command.settings = Settings()
    parser = ScrapyArgumentParser(conflict_handler="resolve")
    command.add_options(parser)
    options = Namespace()
    options, rest = parser.parse_known_args(arguments[1:], options)
    command.process_options(rest, options)
    assert arguments[0] == "frontier"


def test_compose_has_a_redis_that_keeps_its_data_three_workers_an_exporter_and_the_page() -> None:
    services = documents(COMPOSE)[0]["services"]

    assert set(services) == {"redis", "worker", "exporter", "dashboard"}
    assert services["worker"]["deploy"]["replicas"] == 3
    assert services["worker"]["restart"] == "on-failure"
    assert services["exporter"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    for command in (services["redis"]["command"].split(), redis_of_kubernetes()):
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def redis_of_kubernetes() -> list[str]:
    ((_, server),) = objects("StatefulSet")
    found: list[str] = server["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_workers_get_the_time_to_finish_their_pages() -> None:
    crawling = [pod for _, _, pod in pods() if any(each.get("args", [""])[0] == "crawl" for each in pod["containers"])]

    assert len(crawling) == 3
    assert all(pod["terminationGracePeriodSeconds"] >= 60 for pod in crawling)
    # A shell in between would not pass SIGTERM on.
    assert all("command" not in container for pod in crawling for container in pod["containers"])


def test_what_refers_to_something_finds_it() -> None:
    labels = [metadata.get("labels", {}) for _, metadata, _ in pods()]
    for _, service in objects("Service"):
        assert service["spec"]["selector"] in labels
    for _, found in objects("Deployment", "StatefulSet"):
        assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]
    maps = {found["metadata"]["name"]: found["data"] for _, found in objects("ConfigMap")}
    text = "".join(path.read_text("utf-8") for path in KUBERNETES)
    for name, key in re.findall(r"configMapKeyRef: \{name: ([\w-]+), key: (\w+)\}", text):
        assert key in maps[name]
    for name, key in re.findall(r"secretKeyRef: \{name: ([\w-]+), key: (\w+)\}", text):
        assert f"kubectl create secret generic {name} --from-literal={key}=" in text


def test_keda_reads_what_is_there() -> None:
    deployments = {found["metadata"]["name"] for _, found in objects("Deployment")}
    services = {found["metadata"]["name"]: found["spec"]["ports"][0]["port"] for _, found in objects("Service")}
    triggers = {}
    for _, found in objects("ScaledObject"):
        assert found["spec"]["scaleTargetRef"]["name"] in deployments
        assert found["spec"]["minReplicaCount"] == 0
        (trigger,) = found["spec"]["triggers"]
        required, optional = TRIGGERS[trigger["type"]]
        assert required <= set(trigger["metadata"]) <= required | optional
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        triggers[trigger["type"]] = trigger["metadata"]

    host = re.escape(".default.svc.cluster.local:")
    ((service, port),) = re.findall(rf"http://([\w-]+){host}(\d+){SCALE_PATH}$", triggers["metrics-api"]["url"])
    assert services[service] == int(port) == PORT
    assert triggers["metrics-api"]["valueLocation"] in Advice.__slots__
    assert triggers["redis"]["listName"] == Keys("books").of("scale")
    assert triggers["redis"]["listLength"] == triggers["metrics-api"]["targetValue"] == "1"


def test_the_page_links_every_file() -> None:
    text = PAGE.read_text("utf-8")

    for path in (COMPOSE, COMPOSE.with_name("Dockerfile"), *KUBERNETES):
        assert f"(../{path.relative_to(REPOSITORY)})" in text
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["triggers"]
    assert shown in [found["spec"]["triggers"] for _, found in objects("ScaledObject")]
