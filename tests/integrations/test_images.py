"""pillow: Scrapy's image pipeline stores the images of all items, whoever is killed while they are downloaded."""

from __future__ import annotations

import io
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from tests.crawl.test_media import Gallery
from tests.support.crawls import Crawls
from tests.support.site import Page, Site

ITEMS = range(1, 7)
HELD = "/image/3.png"


class Pictures(Gallery):
    """Makes an item with an image of each page."""

    field = "image_urls"
    files = ("/image/{}.png",)


def png(width: int) -> bytes:
    output = io.BytesIO()
    Image.new("RGB", (width, 40), "red").save(output, "PNG")
    return output.getvalue()


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        size: tuple[int, int] = image.size
    return size


def start_settings(folder: Path) -> dict[str, Any]:
    for images in ("full", "thumbs/small"):  # As docs/integrations.md advises.
        (folder / "images" / images).mkdir(parents=True)
    return {
        "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1},
        "IMAGES_STORE": str(folder / "images"),
        "PRIOQUEUE_LEASE_TTL": 10,
        "IMAGES_THUMBS": {"small": (20, 20)},
    }


def test_a_kill_during_downloads_of_images_leaves_no_item_without_them(
    on_redis: Crawls, site: Site, tmp_path: Path
) -> None:
    gate, pages = threading.Event(), [f"/item/{number}" for number in ITEMS]
    images = {
        f"/image/{number}.png": Page(
            body=png(100 + number),
            headers={"Content-Type": "image/png"},
            gate=gate if f"/image/{number}.png" == HELD else None,
        )
        for number in ITEMS
    }
    site.pages = {"/": pages, **{path: Page(body=b"") for path in pages}, **images}
    crawls = on_redis.having(**start_settings(tmp_path))
    workers = [crawls.start(spider=Pictures) for _ in range(2)]
    workers[0].wait_for_site([HELD])
    crawls.wait_for_done(len(ITEMS))

    killed, other = sorted(workers, key=lambda worker: HELD not in worker.pages)
    killed.kill()
    gate.set()
    results = [crawls.run(spider=Pictures), other.wait()]

    found = [*killed.events("item"), *(item for result in results for item in result.items)]
    items = {item["page"]: item for item in found}
    assert sorted(items) == pages
    for number in ITEMS:
        (stored,) = items[f"/item/{number}"]["images"]
        path = tmp_path / "images" / stored["path"]
        assert size_of(path) == (100 + number, 40)
        assert size_of(tmp_path / "images" / "thumbs" / "small" / path.name)[0] == 20
    assert Counter(visit.path for visit in site.visits) == {
        path: 2 if path in (HELD, "/item/3") else 1 for path in site.pages
    }
    assert [result.reason for result in results] == ["finished", "finished"]
