"""Metrics in Prometheus' format, collected when they are asked for: nothing is paid for them on the hot path."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vennue.control.coordinator import Coordinator
from vennue.control.keeper import Keeper
from vennue.control.views import flagged_jobs, job_counts
from vennue.state.space import NO_BOUND, Space

_COUNTERS = {
    "check_ins": "Check-ins received",
    "shed": "Check-ins told to come back for want of time",
    "tasks": "Tasks handed to devices",
    "reports": "Reports counted",
    "duplicates": "Repeated reports that were answered again",
    "refused_reports": "Reports refused, alone or in a leaf's sum: too late, or not fit for their round",
    "late_reports": "Reports refused for being too late, each credited once",
    "report_bytes": "Bytes of the reports counted",
    "partials": "Partial sums of leaves counted",
    "refused_partials": "Partial sums of leaves not counted as they were",
    "commits": "Rounds committed",
    "failed_commits": "Aggregates that could not be made",
    "policy_failures": "Plans that could not be made",
    "ledger_failures": "Times that the ledger failed",
}


class Telemetry(Collector):
    """The metrics of one server.

    Args:
        coordinator: whose.
        responses: answers by HTTP status, kept up to date by the application.
        keeper: what removes models that no job needs, if anything does.
        space: the room on the disks.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        responses: Mapping[int, int],
        keeper: Keeper | None = None,
        space: Space = NO_BOUND,
    ) -> None:
        self._coordinator = coordinator
        self._responses = responses
        self._keeper = keeper
        self._space = space
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All metrics, in the text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What ``prometheus_client`` calls."""
        coordinator = self._coordinator
        pool = coordinator.pool
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"vennue_{name}", text, value=getattr(coordinator.counters, name))
        yield CounterMetricFamily(
            "vennue_refused_bytes",
            "Bytes received of reports that were refused or broken off",
            value=coordinator.data.refused_bytes,
        )
        if self._keeper is not None:
            freed = self._keeper.freed_bytes
            yield CounterMetricFamily("vennue_freed_bytes", "Bytes of models removed for want of use", value=freed)
        responses = CounterMetricFamily("vennue_responses", "Answers by HTTP status", labels=["status"])
        for status, count in sorted(self._responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        jobs = GaugeMetricFamily("vennue_jobs", "Jobs by state", labels=["state"])
        for state, count in job_counts(pool).items():
            jobs.add_metric([state], count)
        yield jobs
        flags = GaugeMetricFamily("vennue_flagged_jobs", "Jobs whose round cannot get its devices", labels=["reason"])
        for code, count in flagged_jobs(pool, coordinator.explainer()).items():
            flags.add_metric([code], count)
        yield flags
        tenants = GaugeMetricFamily(
            "vennue_tenant_devices", "Devices at work, by tenant with a quota", labels=["tenant"]
        )
        for tenant in pool.tenants.values():
            tenants.add_metric([tenant.name], tenant.in_flight)
        yield tenants
        gauges = {
            "open_attempts": ("Attempts that are not closed", len(pool.attempts())),
            "live_assignments": ("Devices at work", len(pool.table.assignments())),
            "requirements": ("Distinct requirements in use", len(pool.registry.bits())),
            "plans": ("Plans made since the start", pool.plans),
            "waiters": ("Long polls at this moment", len(coordinator.waiters)),
            "uploads": ("Models and reports being received", coordinator.data.uploads.active),
            "blob_bytes": ("Bytes of the disk that models and uploads take", coordinator.data.blobs.used_bytes),
            "uptime_seconds": ("Seconds since the start", coordinator.uptime_s),
            "ready": (
                "1 if the server can do its work",
                int(coordinator.failure is None and not coordinator.stopping and self._space.lack() is None),
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"vennue_{name}", text, value=value)
