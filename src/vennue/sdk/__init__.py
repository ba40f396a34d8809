"""What job owners and devices program against: ``Job`` and ``Device``, over one small transport seam.

It speaks the wire messages of ``vennue.protocol`` and imports nothing of the server, so a device installs none of it.
"""

from vennue.sdk.device import AsyncDevice, AsyncTask, Device, Task
from vennue.sdk.job import AsyncJob, AsyncRound, Job, Round
from vennue.sdk.retry import Retry
from vennue.sdk.transport import Timing

__all__ = ["AsyncDevice", "AsyncJob", "AsyncRound", "AsyncTask", "Device", "Job", "Retry", "Round", "Task", "Timing"]
