"""What a server counts as it goes, for telemetry."""

import msgspec


class Counters(msgspec.Struct):
    """What has happened since the start, for telemetry. Only ever grows."""

    check_ins: int = 0
    shed: int = 0
    """Check-ins that were told to come back without being looked at, under overload."""
    tasks: int = 0
    """Answers to check-ins and declines that held a task."""
    reports: int = 0
    duplicates: int = 0
    refused_reports: int = 0
    """By themselves, or named as what keeps a leaf's partial sum from being counted."""
    late_reports: int = 0
    """Of the refused ones: those of devices that worked, and came too late."""
    report_bytes: int = 0
    partials: int = 0
    """Leaves' partial sums that were counted; the reports in them count as reports, too."""
    refused_partials: int = 0
    """Those that were not. Most come again, without the reports that stood in their way."""
    commits: int = 0
    failed_commits: int = 0
    policy_failures: int = 0
    ledger_failures: int = 0
