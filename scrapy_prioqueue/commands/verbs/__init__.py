"""The verbs of `scrapy frontier`, one small module each; this module only lists them, in the order of the help."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_prioqueue.commands.verb import Verb
from scrapy_prioqueue.commands.verbs.budget import BudgetVerb
from scrapy_prioqueue.commands.verbs.dead import DeadVerb
from scrapy_prioqueue.commands.verbs.doctor import DoctorVerb
from scrapy_prioqueue.commands.verbs.explain import ExplainVerb
from scrapy_prioqueue.commands.verbs.find import FindVerb
from scrapy_prioqueue.commands.verbs.forget import ForgetVerb
from scrapy_prioqueue.commands.verbs.limit import LimitVerb
from scrapy_prioqueue.commands.verbs.list import ListVerb
from scrapy_prioqueue.commands.verbs.migrate import MigrateFromJobdirVerb, MigrateFromScrapyRedisVerb
from scrapy_prioqueue.commands.verbs.orders import DrainVerb, PauseVerb, ResumeVerb, StopVerb
from scrapy_prioqueue.commands.verbs.peek import PeekVerb
from scrapy_prioqueue.commands.verbs.pending import MoveVerb, RemoveVerb
from scrapy_prioqueue.commands.verbs.push import PushVerb
from scrapy_prioqueue.commands.verbs.release import ReleaseVerb
from scrapy_prioqueue.commands.verbs.reset import ResetVerb
from scrapy_prioqueue.commands.verbs.show import ShowVerb
from scrapy_prioqueue.commands.verbs.slots import SlotsVerb
from scrapy_prioqueue.commands.verbs.status import StatusVerb
from scrapy_prioqueue.commands.verbs.top import TopVerb
from scrapy_prioqueue.commands.verbs.transfer import ExportVerb, ImportVerb
from scrapy_prioqueue.commands.verbs.workers import WorkersVerb

VERBS: Sequence[type[Verb]] = (
    ListVerb,
    StatusVerb,
    TopVerb,
    SlotsVerb,
    PeekVerb,
    ShowVerb,
    FindVerb,
    ExplainVerb,
    WorkersVerb,
    DoctorVerb,
    LimitVerb,
    BudgetVerb,
    PushVerb,
    DeadVerb,
    ForgetVerb,
    MoveVerb,
    RemoveVerb,
    ReleaseVerb,
    PauseVerb,
    ResumeVerb,
    DrainVerb,
    StopVerb,
    ExportVerb,
    ImportVerb,
    MigrateFromScrapyRedisVerb,
    MigrateFromJobdirVerb,
    ResetVerb,
)
