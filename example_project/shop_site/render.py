"""A page as bytes: HTML, or XML for a sitemap; nothing that knows of requests."""

from __future__ import annotations

from html import escape

from shop_site.catalogue import FORBIDDEN_PATH, Page

ROBOTS_TXT = f"User-agent: *\nDisallow: {FORBIDDEN_PATH}\n".encode()


def content_type(page: Page) -> str:
    """Return what the page's Content-Type is."""
    return "application/xml" if page.kind == "sitemap" else "text/html; charset=utf-8"


def render(page: Page) -> bytes:
    """Return the page's body."""
    return (_sitemap(page) if page.kind == "sitemap" else _html(page)).encode()


def _html(page: Page) -> str:
    price = f'<p class="price">{page.price}</p>' if page.price else ""
    lists = "".join(
        f'<ul class="{name}">{"".join(f"<li>{_anchor(url)}</li>" for url in urls)}</ul>'
        for name, urls in page.links.items()
    )
    title = escape(page.title)
    return f"<!doctype html><title>{title}</title><h1>{title}</h1>{price}{lists}"


def _anchor(url: str) -> str:
    return f'<a href="{escape(url)}">{escape(url)}</a>'


def _sitemap(page: Page) -> str:
    ((element, urls),) = page.links.items()
    root = "sitemapindex" if element == "sitemap" else "urlset"
    entries = "".join(f"<{element}><loc>{escape(url)}</loc></{element}>" for url in urls)
    return f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{root}>'
