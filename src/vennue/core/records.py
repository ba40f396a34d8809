"""Between live jobs and attempts and the records that a ledger keeps of them: there and back again."""

from vennue.core.effects import AttemptRecord, JobRecord
from vennue.core.job import Job
from vennue.core.requirement import Requirement
from vennue.core.round import Attempt


def job_record(job: Job) -> JobRecord:
    """The job as the ledger keeps it."""
    return JobRecord(
        id=job.id,
        spec=job.spec,
        state=job.state,
        arrival=job.arrival,
        submitted_at=job.submitted_at,
        ended_at=job.ended_at,
        committed=job.committed,
        model=job.model,
        attained=job.attained,
        scheduling_delay_s=job.scheduling_delay_s,
        collection_s=job.collection_s,
        reason=job.reason,
    )


def job_of_record(record: JobRecord, requirement: Requirement, private: Requirement | None, bit: int) -> Job:
    """The job as it was when the record was made, without its attempt."""
    job = Job(
        record.id,
        record.spec,
        requirement,
        private,
        bit,
        arrival=record.arrival,
        submitted_at=record.submitted_at,
    )
    job.state = record.state
    job.ended_at = record.ended_at
    job.committed = record.committed
    job.model = record.model
    job.attained = record.attained
    job.scheduling_delay_s = record.scheduling_delay_s
    job.collection_s = record.collection_s
    job.reason = record.reason
    return job


def attempt_record(attempt: Attempt) -> AttemptRecord:
    """The attempt as the ledger keeps it."""
    return AttemptRecord(
        id=attempt.id,
        job=attempt.job,
        round=attempt.round,
        number=attempt.number,
        state=attempt.state,
        model=attempt.model,
        config=attempt.config,
        opened_at=attempt.opened_at,
        closed_at=attempt.closed_at,
        bound=attempt.request.bound,
        reported=len(attempt.request.reported),
        scheduling_delay_s=attempt.scheduling_delay_s,
        result=attempt.result,
        reason=attempt.reason,
        restarts=attempt.restarts,
    )
