"""Names of a frontier's keys. No other Python module builds them; the scripts build the same from `KEYS[1]`."""

from __future__ import annotations

LAYOUT = "2"
"""Version of the layout of keys and values, written in the frontier's state; see docs/reference/keys.md."""

KEPT_BY_ALL = frozenset(
    (
        *("state", "stats", "workers", "busy", "hungry", "sessions", "info", "claims"),
        *("limits", "budgets", "ordered"),
    )
)
"""Nouns kept by every clearing: the state of the frontier, its counters and its workers."""

KEPT_BY_RESTART = KEPT_BY_ALL | {"ended", "dead", "died", "runs", "ran", "numbers", "history"}
"""Nouns kept for a new crawl: ended crawls, dead letters and the history, too."""

KEPT_BY_KEEP = KEPT_BY_RESTART | {"seen"}
"""Nouns kept for a new crawl if `PRIOQUEUE_ON_FINISH` is "keep"."""

_KEPT = {"all": KEPT_BY_ALL, "restart": KEPT_BY_RESTART, "keep": KEPT_BY_KEEP}


_LONGEST_PART = 100


def connection_name(frontier: str, who: str) -> str:
    """Return the name of a connection, for operators who read `CLIENT LIST`.

    Redis accepts printable ASCII without blanks; other characters become underscores.
    """
    parts = (part[:_LONGEST_PART] for part in ("prioqueue", frontier, who))
    return "".join(letter if "!" <= letter <= "~" else "_" for letter in ":".join(parts))


def state_pattern() -> str:
    """Return the glob with which `SCAN` finds the state of every frontier, and perhaps a few other keys."""
    return "{prioqueue:*}:state"


def name_of_state(key: str) -> str | None:
    """Return the name of the frontier of which this key is the state, None if it is another key."""
    name = key.removeprefix("{prioqueue:").removesuffix("}:state")
    return name if name and not set(name) & set("{}") and Keys(name).state == key else None


class Keys:
    """Keys of one frontier; all share one hash tag, so that a script uses one Cluster hash slot.

    Args:
        name: the frontier's name.
    """

    def __init__(self, name: str) -> None:
        self.prefix = f"{{prioqueue:{name}}}:"
        self.state = self.prefix + "state"
        self.workers = self.prefix + "workers"
        self.sessions = self.prefix + "sessions"
        self.leases = self.prefix + "leases"
        self.leased = self.prefix + "leased"
        self.dead = self.prefix + "dead"
        self.died = self.prefix + "died"
        self.bell = self.prefix + "bell"

    def of(self, noun: str) -> str:
        """Return the key of a noun that has only one."""
        return self.prefix + noun

    def queue(self, slot: bytes) -> bytes:
        """Return the key of a slot's queue."""
        return self.of("queue:").encode() + slot

    def ready(self, tier: int | None = None) -> str:
        """Return the key of a lane: that of a tier, or the only one."""
        return self.of("ready" if tier is None else f"ready:{tier}")

    def unsorted(self, number: int) -> str:
        """Return the key of slots that are not in their new lanes yet: those of the first replaced lane, or a later
        one."""
        return self.of("unsorted" if number == 1 else f"unsorted:{number}")

    def seen(self, level: int, bucket: int) -> str:
        """Return the key of a set of fingerprints."""
        return self.of(f"seen:{level}:{bucket}")

    def is_cleared_by(self, key: bytes, scope: str) -> bool:
        """Return whether a clearing of that scope ("all", "restart", "keep") drops a key of this frontier."""
        return self.noun(key) not in _KEPT[scope]

    def noun(self, key: bytes) -> str:
        """Return the noun of a key of this frontier."""
        return key.decode("utf-8", "surrogateescape").removeprefix(self.prefix).split(":", 1)[0]

    def pattern(self) -> str:
        """Return the glob with which `SCAN` finds all keys; special characters of globs are escaped."""
        return "".join("\\" + letter if letter in "*?[]\\" else letter for letter in self.prefix) + "*"
